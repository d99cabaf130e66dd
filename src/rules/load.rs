//! Finds the rules files.
