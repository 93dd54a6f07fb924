//! The C side, as far as NetACC needs it: structures and constants under their C names, for libibverbs
//! (`infiniband/verbs.h`) and librdmacm (`rdma/rdma_cma.h`).
//!
//! `tests/layout.rs` compares every size, offset, constant and prototype with the installed headers.
//!
//! C enumerations are plain integers here. The libraries may know values that we do not, and an
//! `enum` of Rust with such a value would be undefined behaviour.
//!
//! Of a structure that the library allocates and we only read, a *prefix* is declared: its fields up to the
//! last one that we read. We never create or move such a structure.
//!
//! # Safety
//! The one unsafe operation here casts an address that `dlsym` found to the function type that the header declares.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names of the C headers")]
#![allow(missing_docs, reason = "ibv_*(3) and rdma_*(3) say what the fields mean")]

mod constants;
mod functions;
mod rdma_cma;
mod verbs;

pub use constants::*;
pub use functions::*;
pub use rdma_cma::*;
pub use verbs::*;
