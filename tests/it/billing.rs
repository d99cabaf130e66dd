//! Usage that can be billed: what a counter was used is in its records, whatever breaks; how they are read, and the
//! ledger of them.

mod leased;
mod reading;
mod writing;
