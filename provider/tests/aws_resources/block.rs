//! The provider block as users of hashicorp/aws know it: accounts, roles and identities, proxies, certificates, endpoints and retries.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use serde_json::Value;

use crate::agent::token;
use crate::life::unique;
use crate::stand::Sandbox;

/// The account of the emulator.
const ACCOUNT: &str = "123456789012";

fn role(name: &str) -> String {
    format!("resource \"karp_node_role\" \"this\" {{\n  name = {name:?}\n}}\n")
}

/// A proxy that notes what it is asked for, passes on what is asked of `aws.invalid`, and refuses tunnels.
struct Proxy {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn to(upstream: &str) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        std::thread::spawn(move || {
            for asker in listener.incoming().flatten() {
                let (upstream, notes) = (upstream.clone(), Arc::clone(&notes));
                std::thread::spawn(move || serve(asker, &upstream, &notes));
            }
        });
        Self { url, asked }
    }

    /// The request lines since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn serve(mut asker: TcpStream, upstream: &str, notes: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(asker.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or_default() == 0 {
        return;
    }
    notes.lock().unwrap().push(line.trim().to_owned());
    if line.starts_with("CONNECT") {
        let _ = asker.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
        return;
    }
    let mut server = TcpStream::connect(upstream).unwrap();
    server.write_all(line.as_bytes()).unwrap();
    let mut back = server.try_clone().unwrap();
    let answers =
        std::thread::spawn(move || std::io::copy(&mut back, &mut asker).and_then(|_| asker.shutdown(Shutdown::Both)));
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = reader.read(&mut buffer) {
        if server.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Write);
    let _ = answers.join();
}

/// Whether a call is of that action and answered well.
fn answered(call: &Value, action: &str) -> bool {
    call["action"] == action && call["error"].is_null()
}

#[test]
fn only_in_accounts_that_are_meant() {
    let Some(sandbox) = Sandbox::find("accounts") else { return };
    let name = unique("accounts");
    let with = |more: &str| sandbox.provider(more) + &role(&name);
    let stand = sandbox.stand(&with(&format!("  allowed_account_ids = [{ACCOUNT:?}, \"210987654321\"]")));
    stand.apply();
    stand.assert_empty_plan();
    for (argument, ids) in [("allowed_account_ids", "210987654321"), ("forbidden_account_ids", "123456789012")] {
        stand.write(&with(&format!("  {argument} = [{ids:?}]")));
        let since = sandbox.last_call();
        let told = stand.plan().one_error();
        assert!(told.contains(argument) && told.contains(ACCOUNT), "{told}");
        let fresh = sandbox.stand(&(sandbox.provider(&format!("  {argument} = [{ids:?}]")) + &role("never-made")));
        let told = fresh.apply_failing().one_error();
        assert!(told.contains(argument), "{told}");
        let calls = sandbox.calls(since);
        assert!(!calls.is_empty() && calls.iter().all(|call| call["action"] == "GetCallerIdentity"), "{calls:?}");
    }
    stand.write(&with(""));
    stand.destroy();
}

#[test]
fn roles_are_assumed_with_all_that_the_block_says() {
    let Some(sandbox) = Sandbox::find("assume") else { return };
    let name = unique("assume");
    let roles = "  assume_role = [{\n    role_arn = \"arn:aws:iam::123456789012:role/first\"\n    session_name = \"deploy\"\n    external_id = \"x1\"\n    \
                 duration = \"30m\"\n    source_identity = \"jo\"\n    policy_arns = [\"arn:aws:iam::aws:policy/ReadOnlyAccess\"]\n    tags = { team = \"a\" }\n    \
                 transitive_tag_keys = [\"team\"]\n  }, { role_arn = \"arn:aws:iam::123456789012:role/second\" }]";
    let stand = sandbox.stand(&(sandbox.provider(roles) + &role(&name)));
    let since = sandbox.last_call();
    stand.apply();
    let calls = sandbox.calls(since);
    let assumed: Vec<&Value> =
        calls.iter().filter(|call| answered(call, "AssumeRole")).map(|call| &call["params"]).collect();
    let first = assumed[0];
    for (param, value) in [
        ("RoleArn", "arn:aws:iam::123456789012:role/first"),
        ("RoleSessionName", "deploy"),
        ("ExternalId", "x1"),
        ("DurationSeconds", "1800"),
        ("SourceIdentity", "jo"),
        ("PolicyArns.member.1.arn", "arn:aws:iam::aws:policy/ReadOnlyAccess"),
        ("Tags.member.1.Key", "team"),
        ("Tags.member.1.Value", "a"),
        ("TransitiveTagKeys.member.1", "team"),
    ] {
        assert_eq!(first[param], value, "{param} in {first}");
    }
    assert_eq!(
        (&assumed[1]["RoleArn"], &assumed[1]["RoleSessionName"]),
        (&Value::from("arn:aws:iam::123456789012:role/second"), &Value::from("karp"))
    );
    let second = calls.iter().filter(|call| answered(call, "AssumeRole")).nth(1).unwrap();
    assert_ne!(second["caller"], "test", "the second role is assumed as the first");
    let made = calls.iter().find(|call| answered(call, "CreateRole")).unwrap();
    assert!(made["caller"] != "test" && made["caller"] != second["caller"], "{made}");
    stand.assert_empty_plan();
    stand.destroy();
}

#[test]
fn the_token_of_an_identity_provider_stands_for_a_role() {
    let Some(sandbox) = Sandbox::with_cluster("identity") else { return };
    let Some(token) = token() else {
        eprintln!("skipped: identity: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    let name = unique("identity");
    let setup = format!(
        "PROVIDER\nresource \"karp_oidc_provider\" \"this\" {{}}\nresource \"karp_controller_role\" \"this\" {{\n  name = \"{name}-ci\"\n  \
         namespace = \"default\"\n  service_account = \"default\"\n  oidc_provider_arn = karp_oidc_provider.this.arn\n}}\n"
    );
    let trusted = sandbox.stand(&setup);
    trusted.apply();
    let trusting = trusted.attribute("karp_controller_role.this", "arn");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let block = |more: &str| {
        let block = format!("  assume_role_with_web_identity = {{\n    role_arn = {trusting}\n    {more}\n  }}");
        sandbox.provider(&block) + &role(&name)
    };
    let stand = sandbox.stand(&block(&format!("web_identity_token_file = {file:?}")));
    let told = stand.apply_failing().one_error();
    assert!(told.contains("No usable credentials") && told.contains("token"), "{told}");
    std::fs::write(&file, &token).unwrap();
    let since = sandbox.last_call();
    stand.apply();
    let calls = sandbox.calls(since);
    assert!(calls.iter().any(|call| answered(call, "AssumeRoleWithWebIdentity")), "{calls:?}");
    let made = calls.iter().find(|call| answered(call, "CreateRole")).unwrap();
    assert_ne!(made["caller"], "test");
    stand.write(&block(&format!("web_identity_token = {token:?}")));
    stand.assert_empty_plan();
    let signature = token.rsplit('.').next().unwrap();
    assert!(!stand.state().contains(signature), "the token is in the state");
    stand.destroy();
    trusted.destroy();
}

#[test]
fn calls_travel_by_the_proxies() {
    let Some(sandbox) = Sandbox::find("proxy") else { return };
    let name = unique("proxy");
    let proxy = Proxy::to(&sandbox.endpoint);
    let endpoints = "  endpoints = {\n    iam = \"http://aws.invalid\"\n    sts = \"http://aws.invalid\"\n  }\n";
    let through = format!("{endpoints}  http_proxy = {:?}\n  https_proxy = \"http://127.0.0.1:9\"", proxy.url);
    let stand = sandbox.stand(&(sandbox.provider(&through) + &role(&name)));
    stand.apply();
    stand.assert_empty_plan();
    let asked = proxy.asked();
    assert!(!asked.is_empty() && asked.iter().all(|line| line.contains("http://aws.invalid/")), "{asked:?}");

    stand
        .write(&(sandbox.provider(&format!("{through}\n  no_proxy = \".invalid\"\n  max_retries = 0")) + &role(&name)));
    let told = stand.plan().one_error();
    assert!(told.contains("No answer from the endpoint"), "{told}");
    assert_eq!(proxy.asked(), Vec::<String>::new());
    stand.write(&(sandbox.provider("") + &role(&name)));
    stand.destroy();
}

#[test]
fn endpoints_and_retries_are_those_of_the_block() {
    let Some(sandbox) = Sandbox::find("endpoints") else { return };
    let proxy = Proxy::to(&sandbox.endpoint);
    let entry =
        "resource \"karp_access_entry\" \"this\" {\n  principal_arn = \"arn:aws:iam::123456789012:role/nobody\"\n}\n";
    let stand = sandbox.stand("");
    for (more, host, attempts) in [
        ("", "eks.us-west-2.amazonaws.com", 1),
        ("  use_fips_endpoint = true", "fips.eks.us-west-2.amazonaws.com", 2),
        ("  use_dualstack_endpoint = true", "eks.us-west-2.api.aws", 1),
    ] {
        let retries = attempts - 1;
        let block = format!(
            "  # no endpoints\n  region = \"us-west-2\"\n  http_proxy = {:?}\n  max_retries = {retries}\n{more}",
            proxy.url
        );
        stand.write(&(sandbox.provider(&block) + entry));
        let told = stand.apply_failing().one_error();
        assert!(told.contains("access entry"), "{told}");
        assert_eq!(proxy.asked(), vec![format!("CONNECT {host}:443 HTTP/1.1"); attempts], "{more}");
    }
}

#[test]
fn a_bundle_of_certificates_is_trusted() {
    let Some(sandbox) = Sandbox::with_cluster("bundle") else { return };
    let Ok(kubeconfig) = std::env::var("KARP_TEST_KUBECONFIG") else {
        eprintln!("skipped: bundle: KARP_TEST_KUBECONFIG is not set");
        return;
    };
    // The API server stands for an endpoint with a certificate of its own authority.
    let kubeconfig: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let authority = cluster["certificate-authority-data"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.pem");
    std::fs::write(&bundle, base64::engine::general_purpose::STANDARD.decode(authority).unwrap()).unwrap();
    let block = |more: &str| {
        let block = format!("  endpoints = {{ iam = {} }}\n  max_retries = 0\n{more}", cluster["server"]);
        sandbox.provider(&block) + &role("never-made")
    };
    let stand = sandbox.stand(&block(""));
    let told = stand.apply_failing().one_error();
    assert!(told.contains("certificate"), "{told}");
    stand.write(&block(&format!("  custom_ca_bundle = {bundle:?}")));
    let told = stand.apply_failing().one_error();
    // The API server closes a stranger's HTTP/2 connection with its answer; either may be read first, and both come through TLS.
    let answered = !told.contains("No answer") || told.contains("http2 error: connection error received");
    assert!(!told.contains("certificate") && answered, "{told}");
    std::fs::write(&bundle, "none").unwrap();
    let told = stand.apply_failing().one_error();
    assert!(told.contains("ca.pem") && told.contains("no certificate in PEM"), "{told}");
}
