//! Loads the rules again when their files change.
