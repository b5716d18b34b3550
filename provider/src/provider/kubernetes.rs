//! The argument that says how to reach the API server where EKS is not to be asked. Names and environment are those of
//! hashicorp/kubernetes; `KUBECONFIG`, which people leave pointing anywhere, is not read.

use std::collections::BTreeMap;

use serde::Deserialize;
use tfplugin::schema::validate;
use tfplugin::{Attribute, Diagnostics, Type, Value};

use super::{Environment, given, is_url, may_say, proxy_url, says, text, without_nulls};

/// How to reach the API server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    pub host: Option<String>,
    pub cluster_ca_certificate: Option<String>,
    pub token: Option<String>,
    pub client_certificate: Option<String>,
    pub client_key: Option<String>,
    pub insecure: Option<bool>,
    pub tls_server_name: Option<String>,
    pub proxy_url: Option<String>,
    pub config_path: Option<String>,
    pub config_paths: Option<Vec<String>>,
    pub config_context: Option<String>,
    pub config_context_cluster: Option<String>,
    pub config_context_auth_info: Option<String>,
    pub exec: Option<Exec>,
}

/// A command that prints credentials, as in a kubeconfig.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Exec {
    pub api_version: String,
    pub command: String,
    pub args: Vec<String>,
    #[serde(deserialize_with = "without_nulls")]
    pub env: BTreeMap<String, String>,
}

impl Kubernetes {
    /// Fills what is left out by the environment: an address only where the block names none of either kind, and credentials only beside an
    /// address.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment<'_>) -> Self {
        for text in self.texts() {
            *text = given(text.take());
        }
        self.config_paths = self.config_paths.take().filter(|paths| !paths.is_empty());
        if !self.has_address() {
            self.host = environment("KUBE_HOST");
        }
        if !self.has_address() {
            self.config_path = environment("KUBE_CONFIG_PATH");
        }
        if !self.has_address() {
            let split = |paths: String| std::env::split_paths(&paths).map(|path| path.display().to_string()).collect();
            self.config_paths = environment("KUBE_CONFIG_PATHS").map(split);
        }
        let fill = |field: &mut Option<String>, name: &str| {
            if field.is_none() {
                *field = environment(name);
            }
        };
        fill(&mut self.proxy_url, "KUBE_PROXY_URL");
        if self.host.is_some() {
            if self.exec.is_none() {
                fill(&mut self.token, "KUBE_TOKEN");
            }
            fill(&mut self.cluster_ca_certificate, "KUBE_CLUSTER_CA_CERT_DATA");
            fill(&mut self.client_certificate, "KUBE_CLIENT_CERT_DATA");
            fill(&mut self.client_key, "KUBE_CLIENT_KEY_DATA");
            fill(&mut self.tls_server_name, "KUBE_TLS_SERVER_NAME");
            self.insecure = self.insecure.or_else(|| truth(&environment("KUBE_INSECURE")?));
        } else {
            fill(&mut self.config_context, "KUBE_CTX");
            fill(&mut self.config_context_cluster, "KUBE_CTX_CLUSTER");
            fill(&mut self.config_context_auth_info, "KUBE_CTX_AUTH_INFO");
        }
        self
    }

    fn texts(&mut self) -> [&mut Option<String>; 11] {
        [
            &mut self.host,
            &mut self.cluster_ca_certificate,
            &mut self.token,
            &mut self.client_certificate,
            &mut self.client_key,
            &mut self.tls_server_name,
            &mut self.proxy_url,
            &mut self.config_path,
            &mut self.config_context,
            &mut self.config_context_cluster,
            &mut self.config_context_auth_info,
        ]
    }

    /// Says whether it names an API server.
    pub fn has_address(&self) -> bool {
        self.host.is_some() || self.config_path.is_some() || self.config_paths.is_some()
    }
}

/// Reads yes or no as Go's programs do, hashicorp/kubernetes among them.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Describes the argument.
pub fn attribute() -> Attribute {
    let address = validate::address(
        "must be a URL with http:// or https://, such as \"https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com\"",
        |text| text.is_empty() || is_url(text),
    );
    let exec = Attribute::nested_single([
        ("api_version", text("The version of the exec protocol.").required()),
        ("command", text("The command.").required()),
        ("args", Attribute::list(Type::String).optional().describe("Its arguments.")),
        ("env", Attribute::map(Type::String).optional().describe("Its environment, besides this process's.")),
    ]);
    let insecure = "Do not verify the API server's certificate; else `KUBE_INSECURE`.";
    let paths = "Kubeconfig files; the first to say something wins. Else `KUBE_CONFIG_PATHS`, separated as `PATH` is.";
    Attribute::nested_single([
        ("host", text("The API server's URL; else `KUBE_HOST`.").validate(address)),
        (
            "cluster_ca_certificate",
            text("The CA certificates of the API server, PEM; else `KUBE_CLUSTER_CA_CERT_DATA`."),
        ),
        ("token", text("A bearer token; else `KUBE_TOKEN`.").sensitive()),
        ("client_certificate", text("A client certificate, PEM; else `KUBE_CLIENT_CERT_DATA`.")),
        ("client_key", text("The client certificate's key, PEM; else `KUBE_CLIENT_KEY_DATA`.").sensitive()),
        ("insecure", Attribute::bool().optional().describe(insecure)),
        (
            "tls_server_name",
            text("The name to verify in the API server's certificate; else `KUBE_TLS_SERVER_NAME`."),
        ),
        (
            "proxy_url",
            text(
                "The proxy through which the API server is called; else `KUBE_PROXY_URL`, else what kubectl would take: the kubeconfig's \
                 `proxy-url`, or `HTTPS_PROXY` less `NO_PROXY`.",
            )
            .validate(proxy_url()),
        ),
        (
            "config_path",
            text("A kubeconfig file; else `KUBE_CONFIG_PATH`. `KUBECONFIG` of the environment is not read."),
        ),
        (
            "config_paths",
            Attribute::list(Type::String).optional().validate(validate::count(1, usize::MAX)).describe(paths),
        ),
        ("config_context", text("The context in the kubeconfig; else `KUBE_CTX`, else its current one.")),
        ("config_context_cluster", text("The cluster in place of the context's own; else `KUBE_CTX_CLUSTER`.")),
        ("config_context_auth_info", text("The user in place of the context's own; else `KUBE_CTX_AUTH_INFO`.")),
        ("exec", exec.optional().describe("A command that prints a token, as in a kubeconfig.")),
    ])
    .optional()
    .describe(
        "How to reach the API server. Leave it out on EKS: endpoint and CA then come from EKS by `cluster_name`, and the token is made \
         of the AWS credentials, without any other program. The environment's `KUBE_*` fill what this block leaves out (`{}` takes all \
         from there), and count without it where no `cluster_name` is known.",
    )
}

/// Checks what concerns several of its attributes.
pub fn validate(kubernetes: &Value, environment: Environment<'_>) -> Diagnostics {
    let mut found = Diagnostics::new();
    let Value::Map(_) = kubernetes else { return found };
    let set = |name: &str| says(kubernetes.get(name));
    if set("token") && set("exec") {
        found.error("kubernetes.exec", "Two sources of a token", "Set `token` or `exec`, not both.");
    }
    let addresses: Vec<&str> = ["host", "config_path", "config_paths"].into_iter().filter(|name| set(name)).collect();
    if let [first, second, ..] = addresses[..] {
        let detail = format!("Set `{first}` or `{second}`, not both.");
        found.error(format!("kubernetes.{second}").as_str(), "Two addresses of one cluster", detail);
    }
    let may_be_set = ["host", "config_path", "config_paths"].into_iter().any(|name| may_say(kubernetes.get(name)));
    if !may_be_set && !Kubernetes::default().with_environment(environment).has_address() {
        found.error(
            "kubernetes",
            "The cluster's address is missing",
            "Set `host`, or `config_path` to a kubeconfig, or one of KUBE_HOST, KUBE_CONFIG_PATH and KUBE_CONFIG_PATHS in the \
             environment; or leave `kubernetes` out, and karp asks EKS for `cluster_name`.",
        );
    }
    if set("host") {
        let of_files = ["config_context", "config_context_cluster", "config_context_auth_info"];
        if let Some(name) = of_files.into_iter().find(|name| set(name)) {
            let detail = format!("`{name}` chooses in a kubeconfig, and `host` is set: leave one of them out.");
            found.error(format!("kubernetes.{name}").as_str(), "There is no kubeconfig to choose in", detail);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn the_environment_fills_what_is_left_out() {
        let all = [
            ("KUBE_HOST", "https://env"),
            ("KUBE_TOKEN", "t"),
            ("KUBE_INSECURE", "true"),
            ("KUBE_CONFIG_PATH", "/env"),
            ("KUBE_CONFIG_PATHS", "/a:/b"),
            ("KUBE_CTX", "prod"),
            ("KUBECONFIG", "/never"),
            ("KUBE_PROXY_URL", "http://proxy"),
        ];
        let told = Kubernetes::default().with_environment(&of(&all));
        assert_eq!((told.host.as_deref(), told.token.as_deref()), (Some("https://env"), Some("t")));
        assert!(told.insecure == Some(true) && told.config_path.is_none() && told.config_context.is_none());

        let block = Kubernetes { config_path: Some("/block".into()), ..Kubernetes::default() };
        let told = block.with_environment(&of(&all));
        assert_eq!((told.config_path.as_deref(), told.config_context.as_deref()), (Some("/block"), Some("prod")));
        assert_eq!(told.proxy_url.as_deref(), Some("http://proxy"), "of each address");
        assert!(told.host.is_none() && told.token.is_none(), "the environment's token is not for this cluster");

        let told = Kubernetes::default().with_environment(&of(&all[4..]));
        assert_eq!(told.config_paths, Some(vec!["/a".to_owned(), "/b".to_owned()]));
        assert!(!Kubernetes::default().with_environment(&of(&all[5..])).has_address());
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let block = Value::object([("host", ""), ("config_path", ""), ("token", ""), ("config_context", "")]);
        let read: Kubernetes = tfplugin::from_value(&block).unwrap();
        let told = read.with_environment(&of(&[("KUBE_CONFIG_PATH", "/env"), ("KUBE_CTX", "prod")]));
        assert_eq!((told.config_path.as_deref(), told.config_context.as_deref()), (Some("/env"), Some("prod")));
        assert!(told.host.is_none() && told.token.is_none());
        let found = |block: &Value| validate(block, &|_: &str| None).to_string();
        assert!(found(&block).contains("address is missing"));
        assert_eq!(found(&block.with("host", "https://a")), "", "empty texts choose nothing and exclude nothing");
        let none = Value::object([("config_paths", Value::List(Vec::new()))]);
        let read: Kubernetes = tfplugin::from_value(&none).unwrap();
        let told = read.with_environment(&of(&[("KUBE_CONFIG_PATHS", "/a:/b")]));
        assert_eq!(told.config_paths, Some(vec!["/a".to_owned(), "/b".to_owned()]));
        assert!(found(&none).contains("address is missing"));
        assert_eq!(found(&none.with("host", "https://a")), "", "neither does an empty list");
    }

    #[test]
    fn the_environments_yes_and_no_are_gos() {
        for (text, insecure) in [("1", Some(true)), ("True", Some(true)), ("0", Some(false)), ("yes", None)] {
            let told =
                Kubernetes::default().with_environment(&of(&[("KUBE_HOST", "https://env"), ("KUBE_INSECURE", text)]));
            assert_eq!(told.insecure, insecure, "{text}");
        }
    }

    #[test]
    fn a_variable_without_a_value_is_not_set_for_the_command() {
        let env = Value::object([("AWS_PROFILE", Value::Null), ("AWS_REGION", Value::from("eu-west-1"))]);
        let exec: Exec = tfplugin::from_value(&Value::object([("command", Value::from("aws")), ("env", env)])).unwrap();
        assert_eq!(exec.env, BTreeMap::from([("AWS_REGION".to_owned(), "eu-west-1".to_owned())]));
    }

    #[test]
    fn addresses_exclude_each_other() {
        let found = |pairs: &[(&'static str, &'static str)]| {
            validate(&Value::object(pairs.iter().copied()), &|_: &str| None).to_string()
        };
        assert!(found(&[("token", "t")]).contains("address is missing"));
        assert!(validate(&Value::object([("token", "t")]), &of(&[("KUBE_HOST", "https://env")])).is_empty());
        assert!(found(&[("host", "https://a"), ("config_path", "/a")]).contains("kubernetes.config_path"));
        assert!(found(&[("host", "https://a"), ("config_context", "a")]).contains("kubernetes.config_context"));
        assert_eq!(found(&[("config_path", "/a"), ("config_context", "a")]), "");
        assert!(validate(&Value::Unknown, &|_: &str| None).is_empty());
        // one of both may turn out to be null
        let unknown = Value::object([("host", Value::Unknown), ("config_path", Value::Unknown)]);
        assert!(validate(&unknown.clone().with("config_context", "a"), &|_: &str| None).is_empty());
        assert!(
            validate(
                &unknown.with("token", Value::Unknown).with("exec", Value::object([("command", "a")])),
                &|_: &str| None
            )
            .is_empty()
        );
    }
}
