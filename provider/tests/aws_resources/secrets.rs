//! No secret of the provider block, and none that karp makes itself, is written anywhere: over create, change, refusal and destroy of
//! everything, with all logs on, neither state nor plan nor output nor log has one.

use std::fs;

use base64::Engine as _;
use serde_json::Value;

use crate::life::unique;
use crate::stand::{Sandbox, Stand};
use crate::teardown::Kubectl;
use crate::tofu::Run;

const OBJECTS: &str = r#"
resource "karp_crds" "this" {}
resource "karp_node_class" "this" {
  name                          = "NAME"
  instance_profile              = "p"
  ami_family                    = "AL2023"
  ami_selector_terms            = [{ alias = "al2023@latest" }]
  subnet_selector_terms         = [{ id = "subnet-1" }]
  security_group_selector_terms = [{ id = "sg-1" }]
  user_data                     = var.user_data
  wait_for_ready                = false
  depends_on                    = [karp_crds.this]
}
resource "karp_node_pool" "this" {
  provider       = karp.direct
  name           = "NAME"
  template       = { labels = { step = "STEP" }, node_class_ref = { name = karp_node_class.this.name }, requirements = [] }
  wait_for_ready = false
}
ephemeral "karp_cluster_token" "this" {
  name = local.cluster_name
}
"#;

/// Prints its environment's token as credentials, as a kubeconfig's `exec` has it.
const PRINT: &str = r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$KARP_BEARER""#;

/// What must not be found, each with its name.
struct Secrets(Vec<(&'static str, String)>);

impl Secrets {
    fn hold(&self, place: &str, text: &str) {
        for (name, secret) in &self.0 {
            assert!(!text.contains(secret), "{place} tells the {name}: {}", around(text, secret));
        }
    }
}

/// The lines that hold a text, cut short.
fn around(text: &str, secret: &str) -> String {
    let lines = text.lines().filter(|line| line.contains(secret)).take(3);
    lines.map(|line| line.chars().take(400).collect::<String>() + "\n").collect()
}

/// A folder whose runs write all logs there are.
struct Traced<'a> {
    stand: Stand<'a>,
    told: String,
}

impl Traced<'_> {
    fn run(&mut self, arguments: &[&str]) -> Run {
        let log = self.stand.folder().join("trace.log");
        let run = self.stand.tofu_in(arguments, &[("TF_LOG", "TRACE"), ("TF_LOG_PATH", log.to_str().unwrap())]);
        self.told += &run.text;
        run
    }

    fn log(&self) -> String {
        fs::read_to_string(self.stand.folder().join("trace.log")).unwrap()
    }
}

/// Gives the body of a key in PEM, by which it would be known in any quoting.
fn body(pem: &str) -> String {
    pem.lines().filter(|line| !line.starts_with("-----")).max_by_key(|line| line.len()).unwrap().to_owned()
}

/// AWS refuses the token of an identity provider, and the token is told nowhere.
fn hold_of_a_federation(sandbox: &Sandbox, name: &str, token: &str, secrets: &Secrets) {
    let role = "arn:aws:iam::123456789012:role/none";
    let identity = format!(
        "  assume_role_with_web_identity = {{\n    role_arn = {role:?}\n    web_identity_token = {token:?}\n  }}\n"
    );
    let one = format!("resource \"karp_node_role\" \"this\" {{\n  name = \"{name}-federated\"\n}}\n");
    let mut foreign = Traced { stand: sandbox.stand(&(sandbox.provider(&identity) + &one)), told: String::new() };
    let refused = foreign.run(&["apply", "-json", "-auto-approve"]);
    assert!(refused.one_error().contains("No usable credentials"), "{}", refused.text);
    secrets.hold("the output of a federation that is refused", &foreign.told);
    secrets.hold("the log of a federation that is refused", &foreign.log());
}

#[test]
fn no_secret_is_written_anywhere() {
    let Some(sandbox) = Sandbox::with_cluster("secrets") else { return };
    let Some(kubectl) = Kubectl::find() else {
        eprintln!("skipped: secrets: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let before = sandbox.what_exists();
    let name = unique("secrets");
    let kubeconfig: Value = serde_json::from_str(&fs::read_to_string(&kubectl.kubeconfig).unwrap()).unwrap();
    let (server, user) = (&kubeconfig["clusters"][0]["cluster"], &kubeconfig["users"][0]["user"]);
    let decoded = |value: &Value| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let (authority, certificate, key) = (
        decoded(&server["certificate-authority-data"]),
        decoded(&user["client-certificate-data"]),
        decoded(&user["client-key-data"]),
    );
    let mark = |what: &str| format!("{what}-of-{name}-8f3a");
    let (secret_key, session, bearer, boot) = (mark("secret"), mark("session"), mark("bearer"), mark("boot"));
    let (proxy, printed, federated) = (mark("proxy"), mark("printed"), mark("federated"));
    let secrets = Secrets(vec![
        ("secret key", secret_key.clone()),
        ("session token", session.clone()),
        ("bearer token", bearer.clone()),
        ("token that karp makes for EKS", "k8s-aws-v1.".to_owned()),
        ("password of a proxy", proxy.clone()),
        ("environment of a command", printed.clone()),
        ("token of an identity provider", federated.clone()),
        ("signature of a call", "X-Amz-Signature=".to_owned()),
        ("key of the client's certificate", body(&key)),
        ("key of the client's certificate, encoded", user["client-key-data"].as_str().unwrap().to_owned()),
    ]);

    let block = |keys: &str, more: &str| {
        let given = sandbox.provider(&format!("  cluster_name = local.cluster_name\n{more}"));
        given.replace("  access_key = \"test\"\n  secret_key = \"test\"\n", keys)
    };
    let keys = format!("  access_key = \"test\"\n  secret_key = {secret_key:?}\n  token = {session:?}\n");
    let reach = |credential: &str| {
        format!(
            "provider \"karp\" {{\n  alias = \"direct\"\n  kubernetes = {{\n    host = {}\n    cluster_ca_certificate = {authority:?}\n{credential}  }}\n}}\n",
            server["server"]
        )
    };
    let by_key = reach(&format!("    client_certificate = {certificate:?}\n    client_key = {key:?}\n"));
    let by_token = reach(&format!("    token = {bearer:?}\n"));
    let by_command = reach(&format!(
        "    exec = {{\n      api_version = \"client.authentication.k8s.io/v1\"\n      command = \"sh\"\n      args = [\"-c\", {PRINT:?}]\n      \
         env = {{ KARP_BEARER = {printed:?} }}\n    }}\n"
    ));
    // This machine is called straight, so that nothing comes there.
    let proxies =
        ["http_proxy", "https_proxy"].map(|name| format!("  {name} = \"http://karp:{proxy}@proxy.invalid:3128\"\n"));
    let variable =
        format!("variable \"user_data\" {{\n  sensitive = true\n  default = \"#!/bin/sh\\necho {boot}\"\n}}\n");
    let config = |direct: &str, step: &str| {
        let objects = OBJECTS.replace("NAME", &name).replace("STEP", step);
        block(&keys, &proxies.concat()) + direct + &variable + &sandbox.everything(&name, step) + &objects
    };

    let mut traced = Traced { stand: sandbox.stand(&config(&by_key, "one")), told: String::new() };
    let applied = traced.run(&["apply", "-json", "-auto-approve"]);
    assert_eq!(applied.code, 0, "{}", applied.text);
    traced.stand.write(&config(&by_key, "two"));
    let planned = traced.run(&["plan", "-json", "-detailed-exitcode", "-out=plan"]);
    assert_eq!(planned.code, 2, "{}", planned.text);
    traced.run(&["show", "-no-color", "plan"]);
    // AWS refuses, and says so with what it was asked.
    let fault = r#"[{"action": "UpdateRoleDescription", "code": "AccessDeniedException", "message": "not you", "status": 403, "times": 5},
                    {"action": "UpdateRole", "code": "AccessDeniedException", "message": "not you", "status": 403, "times": 5}]"#;
    sandbox.door("POST", "/_karp/fail", fault);
    let refused = traced.run(&["apply", "-json", "plan"]);
    sandbox.door("POST", "/_karp/reset-faults", "{}");
    assert!(refused.code == 1 && refused.text.contains("not you"), "{}", refused.text);
    // The API server refuses a token, and one that a command prints.
    for direct in [&by_token, &by_command] {
        traced.stand.write(&config(direct, "two"));
        let refused = traced.run(&["plan", "-json"]);
        assert!(refused.one_error().contains("credentials"), "{}", refused.text);
    }
    traced.stand.write(&config(&by_key, "two"));
    let applied = traced.run(&["apply", "-json", "-auto-approve"]);
    assert_eq!(applied.code, 0, "{}", applied.text);
    let (state, shown) = (traced.stand.state(), traced.run(&["show", "-json"]).text);
    assert!(state.contains(&name) && shown.contains(&name), "{state}");
    let destroyed = traced.run(&["destroy", "-json", "-auto-approve"]);
    assert_eq!(destroyed.code, 0, "{}", destroyed.text);

    hold_of_a_federation(&sandbox, &name, &federated, &secrets);

    let log = traced.log();
    assert!(log.contains("[TRACE]") && log.contains("terraform-provider-karp"), "nothing was traced");
    for (place, text) in
        [("the state", &state), ("the state as shown", &shown), ("the output", &traced.told), ("the log", &log)]
    {
        secrets.hold(place, text);
    }
    // A state keeps user data, as that of every provider does; where it is sensitive, nothing else shows it.
    assert!(state.contains(&boot), "{state}");
    let told: String = traced.told.lines().filter(|line| !line.starts_with("{\"format_version\"")).collect();
    let quiet = Secrets(vec![("user data", boot)]);
    quiet.hold("the output", &told);
    quiet.hold("the log", &log);
    assert_eq!(sandbox.what_exists(), before, "something is left");
}
