//! Usage that can be billed: what is written of it, how it is read, and the ledger of it.

mod reading;
