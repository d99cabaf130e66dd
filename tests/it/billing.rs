//! Usage that can be billed: what a counter was used is in its records, whatever breaks.

mod writing;
