//! The protocol's messages and services, generated at build time from `proto/`.

/// Terraform's own service.
#[allow(clippy::all, dead_code, missing_docs)]
pub(crate) mod terraform {
    tonic::include_proto!("tfplugin6");
}

/// The services that go-plugin expects of every plugin.
#[allow(clippy::all, dead_code, missing_docs)]
pub(crate) mod goplugin {
    tonic::include_proto!("plugin");
}
