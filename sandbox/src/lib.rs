//! A loopback EKS for demo and tests: a real Kubernetes control plane, an EC2 emulator, and what joins them.
//!
//! Every listener is on 127.0.0.1 and on a free port, so several sandboxes run side by side. Whatever a sandbox starts is written
//! down in its run directory and ended by process id.

pub mod audit;
pub mod by_hand;
pub mod cargo;
mod checkout;
pub mod cli;
pub mod context;
pub mod control_plane;
pub mod demo;
pub mod figures;
pub mod group;
pub mod http;
pub mod iam;
pub mod kubeconfig;
pub mod kwok;
pub mod lanes;
pub mod layout;
pub mod lives;
pub mod moto;
pub mod node_bridge;
pub mod oracle;
pub mod pki;
pub mod port;
pub mod process;
pub mod process_kubelet;
pub mod products;
pub mod progress;
pub mod record;
pub mod release;
pub mod sandbox;
pub mod second_opinion;
pub mod state;
pub mod tofu;
pub mod tools;
pub mod verify;

pub use context::Context;
pub use sandbox::{Options, Sandbox};
