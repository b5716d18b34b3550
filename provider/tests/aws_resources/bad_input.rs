//! Wrong input: one clear diagnostic at the right place, and state as it was.

use crate::stand::Sandbox;

fn config(sandbox: &Sandbox, provider: &str, name: &str) -> String {
    let roles = "resource \"karp_node_role\" \"this\" {\n  name = \"NAME\"\n}\n\
                 resource \"karp_instance_profile\" \"this\" {\n  name = \"NAME\"\n  role_name = karp_node_role.this.name\n}\n\
                 resource \"karp_interruption_queue\" \"this\" {\n  name = \"NAME\"\n}\n";
    format!("{}{}", sandbox.provider(provider), roles.replace("NAME", name))
}

fn unique(test: &str) -> String {
    format!("b{}-{test}", std::process::id())
}

#[test]
fn a_wrong_provider_block_is_one_error_and_state_stays() {
    let Some(sandbox) = Sandbox::find("wrong_provider") else { return };
    let name = unique("wrong");
    let stand = sandbox.stand(&config(&sandbox, "", &name));
    stand.apply();
    let state = stand.state();
    let nobody =
        "  endpoints = { iam = \"http://127.0.0.1:9\", sqs = \"http://127.0.0.1:9\", sts = \"http://127.0.0.1:9\" }";
    let cases = [
        ("  region = \"eu-north-1\"", "Wrong region or account", "state was left as it was"),
        (nobody, "No answer from the endpoint", "state was left as it was"),
        ("  profile = \"nobody\"", "No usable credentials", "State was left as it was"),
    ];
    for (provider, summary, state_stays) in cases {
        stand.write(&config(&sandbox, provider, &name));
        let run = stand.plan();
        assert_eq!(run.code, 1, "{provider}: {}", run.text);
        let error = run.one_error();
        assert!(error.contains(summary) && error.contains(state_stays), "{provider}: {error}");
        assert_eq!(stand.state(), state, "{provider}");
    }
    stand.write(&config(&sandbox, &format!("{nobody}\n  offline_plan = true"), &name));
    stand.assert_empty_plan();
    stand.write(&config(&sandbox, "", &name));
    stand.destroy();
}

#[test]
fn an_unknown_endpoint_keeps_the_state_with_one_warning() {
    let Some(sandbox) = Sandbox::find("unknown_endpoint") else { return };
    let name = unique("unknown");
    let later = |version: u32| {
        let block = "  endpoints = {\n    iam = terraform_data.url.output\n    sqs = terraform_data.url.output\n    \
                     events = terraform_data.url.output\n    sts = terraform_data.url.output\n  }";
        let url = format!(
            "resource \"terraform_data\" \"url\" {{\n  input = {:?}\n  triggers_replace = {version}\n}}\n",
            sandbox.endpoint
        );
        url + &config(&sandbox, block, &name)
    };
    let stand = sandbox.stand(&later(1));
    stand.apply();
    stand.assert_empty_plan();
    stand.write(&later(2));
    let run = stand.plan();
    assert_eq!(run.code, 2, "{}", run.text);
    assert_eq!(run.changes(), [("replace".to_owned(), "terraform_data.url".to_owned())], "{}", run.text);
    assert_eq!(run.warnings().len(), 1, "{}", run.text);
    stand.apply();
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn a_missing_cluster_is_told_at_its_attribute() {
    let Some(sandbox) = Sandbox::find("missing_cluster") else { return };
    let stand = sandbox
        .stand("PROVIDER\nresource \"karp_oidc_provider\" \"this\" {\n  cluster_name = \"no-such-cluster\"\n}\n");
    let run = stand.apply_failing();
    let error = run.one_error();
    assert!(error.contains("There is no cluster \"no-such-cluster\""), "{error}");
    assert!(run.errors()[0]["snippet"]["code"].as_str().unwrap().contains("cluster_name"), "{}", run.text);

    stand.write(&format!(
        "{}resource \"karp_node_role\" \"this\" {{}}\n",
        sandbox.provider("  # cluster_name is left out")
    ));
    assert!(stand.plan().one_error().contains("The cluster's name is missing"));
}

#[test]
fn validate_refuses_at_the_attribute_and_asks_nobody() {
    let Some(sandbox) = Sandbox::find("validate") else { return };
    let nobody = "  endpoints = { iam = \"http://127.0.0.1:9\" }";
    let cases = [
        ("karp_node_role", "name = \"has spaces\"", "name"),
        ("karp_node_role", "additional_policy_arns = { a = \"nonsense\" }", "additional_policy_arns"),
        ("karp_node_role", "path = \"no-slashes\"", "path"),
        ("karp_controller_role", "name = \"x\"", "karp_controller_role"),
        ("karp_controller_role", "auth = \"magic\"", "auth"),
        ("karp_interruption_queue", "message_retention_seconds = 5", "message_retention_seconds"),
        ("karp_interruption_queue", "events = [\"weather\"]", "events"),
        ("karp_access_entry", "principal_arn = \"me\"", "principal_arn"),
        ("karp_discovery_tags", "resource_ids = []\n  value = \"x\"", "resource_ids"),
    ];
    for (kind, argument, attribute) in cases {
        let stand =
            sandbox.stand(&format!("{}resource \"{kind}\" \"this\" {{\n  {argument}\n}}\n", sandbox.provider(nobody)));
        let run = stand.tofu(&["validate", "-json"]);
        assert_eq!(run.code, 1, "{kind} {argument}: {}", run.text);
        let found: serde_json::Value = serde_json::from_str(&run.text).unwrap_or_default();
        let errors: Vec<&serde_json::Value> =
            found["diagnostics"].as_array().unwrap().iter().filter(|found| found["severity"] == "error").collect();
        let at =
            |error: &&&serde_json::Value| error["snippet"]["code"].as_str().unwrap_or_default().contains(attribute);
        assert!(errors.iter().find(at).is_some(), "{kind} {argument}: {}", run.text);
    }
}
