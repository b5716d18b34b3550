//! The Terraform provider karp: `terraform-provider-karp`, started by Terraform or OpenTofu.

mod aws;
mod cluster;
mod provider;
mod report;
mod resources;
mod session;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    tfplugin::serve(provider::Karp::default()).await
}
