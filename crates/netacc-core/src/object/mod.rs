//! The objects that descriptors stand for, and what belongs to them: sockets, listeners, epoll instances.
//!
//! They refer to each other, and know nothing of what calls do with them.

pub mod address;
pub mod candidate;
pub mod instance;
pub mod listener;
pub mod name;
pub mod reference;
pub mod socket;
pub mod state;
pub mod subscription;
