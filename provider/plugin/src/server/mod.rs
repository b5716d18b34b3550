//! The plugin process: handshake, transport, protocol service and log.

mod log;
mod process;
mod service;
mod transport;
mod wire;

pub use process::serve;
pub(crate) use service::Service;
