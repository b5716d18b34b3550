//! Pod identity associations, whom the controller's role is given to, and the account's role for spot instances.

use std::collections::BTreeMap;

use aws_sdk_iam::Client as Iam;
use karp_aws::config::Service;
use serde_json::Value;

use crate::stand::Sandbox;

const ROLE: &str = "karp_controller_role.this";

fn unique(test: &str) -> String {
    format!("a{}-{test}", std::process::id())
}

fn association(name: &str, role: &str, more: &str) -> String {
    format!(
        "PROVIDER\nresource \"karp_node_role\" \"one\" {{\n  name = \"{name}-1\"\n}}\n\
         resource \"karp_node_role\" \"two\" {{\n  name = \"{name}-2\"\n}}\n\
         resource \"karp_pod_identity_association\" \"this\" {{\n  namespace = \"apps\"\n  service_account = {name:?}\n  \
         role_arn = karp_node_role.{role}.arn\n{more}\n}}\n"
    )
}

#[tokio::test]
async fn an_association_comes_changes_heals_and_goes() {
    let Some(sandbox) = Sandbox::find("association") else { return };
    let name = unique("assoc");
    let before = sandbox.door("GET", "/_karp/inventory", "");
    let stand = sandbox.stand(&association(&name, "one", ""));
    stand.apply();
    stand.assert_empty_plan();
    let id = stand.attribute("karp_pod_identity_association.this", "association_id");

    stand.write(&association(&name, "two", ""));
    let run = stand.apply();
    let changes = [("update".to_owned(), "karp_pod_identity_association.this".to_owned())];
    assert_eq!(run.changes(), changes, "{}", run.text);
    stand.assert_empty_plan();
    assert_eq!(stand.attribute("karp_pod_identity_association.this", "association_id"), id);

    // Tags come, change and go; what others put there or took away is left alone and put back.
    let eks = sandbox.clients().await.eks().clone();
    let arn = stand.attribute("karp_pod_identity_association.this", "arn").as_str().unwrap().to_owned();
    let tags = async || {
        let all = eks.list_tags_for_resource().resource_arn(&arn).send().await.unwrap().tags.unwrap_or_default();
        all.into_iter().collect::<BTreeMap<_, _>>()
    };
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let own = [("karp.sh/cluster", sandbox.cluster.as_str())];
        pairs.iter().chain(&own).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(tags().await, of(&[]));
    stand.write(&association(&name, "two", "  tags = { step = \"one\" }"));
    assert_eq!(stand.apply().changes(), changes);
    stand.assert_empty_plan();
    eks.tag_resource().resource_arn(&arn).tags("theirs", "x").send().await.unwrap();
    eks.untag_resource().resource_arn(&arn).tag_keys("step").send().await.unwrap();
    assert_eq!(stand.plan().changes(), changes);
    stand.write(&association(&name, "two", "  tags = { step = \"two\" }"));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(tags().await, of(&[("step", "two"), ("theirs", "x")]));
    stand.write(&association(&name, "two", ""));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(tags().await, of(&[("theirs", "x")]));

    // What vanished is made again.
    let call = eks.delete_pod_identity_association().cluster_name(&sandbox.cluster);
    call.association_id(id.as_str().unwrap()).send().await.unwrap();
    assert_eq!(stand.apply().changes(), [("create".to_owned(), "karp_pod_identity_association.this".to_owned())]);
    stand.assert_empty_plan();

    // An import by id needs no change.
    let id = stand.attribute("karp_pod_identity_association.this", "id");
    let arn = stand.attribute("karp_node_role.two", "arn");
    let alone = format!(
        "PROVIDER\nimport {{\n  to = karp_pod_identity_association.this\n  id = {id}\n}}\nresource \"karp_pod_identity_association\" \
         \"this\" {{\n  namespace = \"apps\"\n  service_account = {name:?}\n  role_arn = {arn}\n}}\n"
    );
    let second = sandbox.stand(&alone);
    second.apply();
    second.assert_empty_plan();
    second.destroy();
    stand.apply();
    stand.destroy();
    assert_eq!(sandbox.door("GET", "/_karp/inventory", ""), before, "something is left");
}

#[test]
fn an_association_of_others_is_taken_only_when_asked() {
    let Some(sandbox) = Sandbox::find("association_adopt") else { return };
    let name = unique("taken");
    let owner = sandbox.stand(&association(&name, "one", ""));
    owner.apply();
    let arn = owner.attribute("karp_node_role.two", "arn");
    let other = |more: &str| {
        format!(
            "PROVIDER\nresource \"karp_pod_identity_association\" \"this\" {{\n  namespace = \"apps\"\n  service_account = {name:?}\n  \
             role_arn = {arn}\n{more}\n}}\n"
        )
    };
    let stand = sandbox.stand(&other(""));
    let refused = stand.apply_failing().one_error();
    assert!(refused.contains("adopt = true") && refused.contains(&format!("{name}-1")), "{refused}");
    // A role with an association of its own takes nobody's either, and is not made before that is known.
    let controllers = |which: &str, more: &str| {
        format!(
            "PROVIDER\nresource \"karp_controller_role\" \"this\" {{\n  name = \"{name}-{which}\"\n  auth = \"pod_identity\"\n  \
             namespace = \"apps\"\n  service_account = {name:?}\n{more}}}\n"
        )
    };
    let before = sandbox.what_exists();
    let role = sandbox.stand(&controllers("c", ""));
    let refused = role.apply_failing().one_error();
    assert!(refused.contains("adopt = true") && refused.contains(&format!("{name}-1")), "{refused}");
    assert_eq!(sandbox.what_exists(), before, "nothing was made");
    stand.write(&other("  adopt = true"));
    stand.apply();
    stand.assert_empty_plan();
    assert_eq!(owner.plan().changes().len(), 1, "the owner sees the other role");

    // Who has lost it to another role in the same run leaves it: the role that is replaced, and whoever has not looked since.
    let taking = "  adopt = true\n  lifecycle {\n    create_before_destroy = true\n  }\n";
    role.write(&controllers("c", taking));
    role.apply();
    role.write(&controllers("d", taking));
    role.apply();
    let unseen = stand.tofu(&["destroy", "-refresh=false", "-json", "-auto-approve"]);
    assert_eq!(unseen.code, 0, "{}", unseen.text);
    role.assert_empty_plan();
    role.destroy();
    owner.destroy();
}

/// The role of an association was deleted, and the next one has another name.
#[tokio::test]
async fn an_association_of_a_role_that_is_gone_is_put_to_use_unasked() {
    let Some(sandbox) = Sandbox::find("association_gone") else { return };
    let (before, name) = (sandbox.what_exists(), unique("gone"));
    let role = |which: &str| {
        format!(
            "PROVIDER\nresource \"karp_controller_role\" \"this\" {{\n  name = \"{name}-{which}\"\n  auth = \"pod_identity\"\n  \
             service_account = {name:?}\n}}\n"
        )
    };
    let stand = sandbox.stand(&role("a"));
    stand.apply();
    let (iam, gone) = (sandbox.iam().await, format!("{name}-a"));
    iam.delete_role_policy().role_name(&gone).policy_name("karp-controller").send().await.unwrap();
    iam.delete_role().role_name(&gone).send().await.unwrap();
    stand.write(&role("b"));
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

/// By which provider, to which pods, and whether by an association: all of it changes in place, and leaves nothing of what was before.
#[tokio::test]
async fn a_role_is_given_to_other_pods_and_stays_the_same() {
    let Some(sandbox) = Sandbox::find("role_auth") else { return };
    let (before, name, clients) = (sandbox.what_exists(), unique("auth"), sandbox.clients().await);
    let (iam, eks) = (clients.iam(), clients.eks());
    let config = |namespace: &str, account: &str, provider: Option<&str>| {
        let auth = match provider {
            Some(provider) => format!("oidc_provider_arn = \"arn:aws:iam::123456789012:oidc-provider/{provider}\""),
            None => "auth = \"pod_identity\"".to_owned(),
        };
        format!(
            "PROVIDER\nresource \"karp_controller_role\" \"this\" {{\n  name = {name:?}\n  namespace = {namespace:?}\n  \
             service_account = {account:?}\n  {auth}\n}}\n"
        )
    };
    // What there was, with the role and its association.
    let with_it = |association: &Value| {
        let mut all = before.clone();
        for (kind, one) in [("roles", &Value::from(name.as_str())), ("pod_identity_associations", association)] {
            let list = all[kind].as_array_mut().unwrap();
            list.extend(Some(one.clone()).filter(Value::is_string));
            list.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
        }
        all
    };
    let stand = sandbox.stand("");
    let give = async |action: &str, namespace: &str, account: &str, provider: Option<&str>| {
        stand.write(&config(namespace, account, provider));
        let run = stand.apply();
        assert_eq!(run.changes(), [(action.to_owned(), ROLE.to_owned())], "{}", run.text);
        stand.assert_empty_plan();
        let association = stand.attribute(ROLE, "association_id");
        assert_eq!(association.is_null(), provider.is_some(), "{association}");
        assert_eq!(sandbox.what_exists(), with_it(&association), "{namespace}/{account} by {provider:?}");
        if let Some(id) = association.as_str() {
            let call = eks.describe_pod_identity_association().cluster_name(&sandbox.cluster).association_id(id);
            let found = call.send().await.unwrap().association.unwrap();
            assert_eq!((found.namespace(), found.service_account()), (Some(namespace), Some(account)));
        }
        let role = iam.get_role().role_name(&name).send().await.unwrap().role.unwrap();
        let trust = role.assume_role_policy_document().unwrap().replace("%3A", ":");
        let pods = format!("system:serviceaccount:{namespace}:{account}");
        let named = provider.map_or(trust.contains("pods.eks.amazonaws.com"), |provider| {
            trust.contains(provider) && trust.contains(&pods)
        });
        assert!(named, "{namespace}/{account} by {provider:?}: {trust}");
        role.role_id().to_owned()
    };
    let (first, second) = (Some("first.example.com"), Some("second.example.com"));
    let role = give("create", "apps", "one", first).await;
    for (namespace, account, provider) in
        [("jobs", "one", second), ("jobs", "one", None), ("jobs", "two", None), ("apps", "two", None)]
    {
        assert_eq!(give("update", namespace, account, provider).await, role, "it is another role");
    }
    // What somebody took from it is given back.
    let call = eks.delete_pod_identity_association().cluster_name(&sandbox.cluster);
    let association = stand.attribute(ROLE, "association_id");
    call.association_id(association.as_str().unwrap()).send().await.unwrap();
    for provider in [None, first] {
        assert_eq!(give("update", "apps", "two", provider).await, role, "it is another role");
    }
    stand.destroy();
    assert_eq!(sandbox.what_exists(), before, "something is left");
}

#[tokio::test]
async fn the_spot_role_is_made_once_and_deleted_only_by_its_maker() {
    let Some(sandbox) = Sandbox::find("spot_role") else { return };
    let before = sandbox.door("GET", "/_karp/inventory", "");
    let config = |more: &str| format!("PROVIDER\nresource \"karp_spot_service_linked_role\" \"this\" {{\n{more}\n}}\n");
    let (maker, other) = (sandbox.stand(&config("")), sandbox.stand(&config("  delete_on_destroy = true")));
    maker.apply();
    maker.assert_empty_plan();
    assert_eq!(maker.attribute("karp_spot_service_linked_role.this", "adopted"), false);
    assert_eq!(maker.attribute("karp_spot_service_linked_role.this", "name"), "AWSServiceRoleForEC2Spot");

    // A second one takes the role as it is, as its plan says, and leaves it.
    let shown = other.tofu(&["plan", "-no-color"]).text;
    let flat = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("+ adopted = true") && flat.contains("+ name = \"AWSServiceRoleForEC2Spot\""), "{shown}");
    let run = other.apply();
    let warned = |one: &&Value| one["summary"] == "The role will stay at destroy";
    let told = run.warnings().into_iter().find(warned).unwrap_or_else(|| panic!("{}", run.text));
    assert!(told["detail"].as_str().unwrap().contains("AWSServiceRoleForEC2Spot exists already"), "{told}");
    other.assert_empty_plan();
    assert_eq!(other.attribute("karp_spot_service_linked_role.this", "adopted"), true);
    other.destroy();
    maker.assert_empty_plan();
    let import = |id: &str| format!("import {{\n  to = karp_spot_service_linked_role.this\n  id = {id:?}\n}}\n");
    let importer = sandbox.stand(&(config("") + &import("spot.amazonaws.com")));
    importer.apply();
    importer.assert_empty_plan();
    importer.destroy();
    let arn = maker.attribute("karp_spot_service_linked_role.this", "arn");
    let by_arn = sandbox.stand(&(config("") + &import(arn.as_str().unwrap()))).plan();
    assert!(by_arn.errors().is_empty(), "{}", by_arn.text);
    by_arn.assert_imports_alone();

    let iam = Iam::new(&sandbox.clients().await.config_for(Service::Iam));
    let name = maker.attribute("karp_spot_service_linked_role.this", "name");
    iam.delete_role().role_name(name.as_str().unwrap()).send().await.unwrap();
    let change = |action: &str| [(action.to_owned(), "karp_spot_service_linked_role.this".to_owned())];
    assert_eq!(maker.apply().changes(), change("create"));
    // Whether it goes with its maker changes in place.
    maker.write(&config("  delete_on_destroy = true"));
    assert_eq!(maker.apply().changes(), change("update"));
    maker.assert_empty_plan();
    maker.destroy();
    assert_eq!(sandbox.door("GET", "/_karp/inventory", ""), before, "something is left");
}
