//! The plugin process: handshake, transport, protocol service and log.

mod call;
mod carry;
mod log;
mod process;
mod rpc;
mod service;
mod transport;
pub(crate) mod wire;

pub use process::serve;
pub(crate) use service::Service;
