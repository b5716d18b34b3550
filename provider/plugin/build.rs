//! Compiles the protocol's definitions with protox, so that no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/terraform.proto", "proto/goplugin.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_client(false).build_server(true).compile_fds(descriptors)?;
    Ok(())
}
