//! The Terraform provider karp: `terraform-provider-karp`, started by Terraform or OpenTofu.

mod aws;
mod cluster;
mod cluster_token;
mod data_sources;
mod docs;
mod functions;
mod manifests;
mod marks;
mod preview;
mod provider;
mod report;
mod resources;
mod session;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// A plan of many objects makes and drops values of some MB for each, on all processors at the same time (decision 0017).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("docs", rest)) = arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return write_docs(rest);
    }
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(tfplugin::serve(provider::Karp::default())),
        Err(e) => fail(&format!("no threads to run on: {e}")),
    }
}

fn write_docs(arguments: &[String]) -> ExitCode {
    let written = docs::Arguments::parse(arguments)
        .and_then(|arguments| docs::write(&provider::Karp::default(), &arguments).map_err(|e| e.to_string()));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("terraform-provider-karp: {message}");
    ExitCode::FAILURE
}
