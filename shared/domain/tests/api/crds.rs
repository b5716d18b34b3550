//! The custom resource definitions, as the API server gets them.

use karp_domain::api;

#[test]
fn definitions_are_as_reviewed() {
    for crd in api::crds() {
        let name = crd.metadata.name.clone().expect("a definition has a name");
        insta::assert_yaml_snapshot!(name, crd);
    }
}
