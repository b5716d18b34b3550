//! Through which proxy an API server is called: the one that kubectl would take.

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// What is on this machine is never looked for behind a proxy of the environment; Go's programs, kubectl among them, take the same exception.
const HERE: &str = "localhost,127.0.0.0/8,::1";

/// Reads a configuration from a kubeconfig. Its proxy is the cluster's own `proxy-url`, else the environment's; kube alone would ask of
/// `NO_PROXY` whether the proxy is in it, not the server.
///
/// # Errors
/// As [`Config::from_custom_kubeconfig`] does.
pub async fn configured(kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> Result<Config, KubeconfigError> {
    let own = of_cluster(&kubeconfig, options);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    let variable = |name: &str| std::env::var(name).ok();
    config.proxy_url = own.or_else(|| of_environment(&config.cluster_url, variable));
    Ok(config)
}

/// Returns the `proxy-url` of the cluster that is chosen: it is called through that, whatever the environment says.
fn of_cluster(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> Option<Uri> {
    let name = options.context.as_ref().or(kubeconfig.current_context.as_ref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *name)?.context.as_ref()?;
    let name = options.cluster.as_ref().unwrap_or(&context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == *name)?.cluster.as_ref()?;
    cluster.proxy_url.as_ref()?.parse().ok()
}

/// Returns the proxy of `HTTPS_PROXY` unless `NO_PROXY` has the server. One at `http://` is called straight.
fn of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let set = |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
    let given = set(["HTTPS_PROXY", "https_proxy"])?;
    let listed = set(["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let entries: Vec<&str> = listed.split(',').map(str::trim).collect();
    // Go's programs take `*` for addresses, too, and `*.` before a domain
    if entries.contains(&"*") {
        return None;
    }
    let domains =
        entries.iter().map(|entry| entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry));
    let straight = domains.chain([HERE]).collect::<Vec<_>>().join(",");
    let found = Matcher::builder().https(given.as_str()).no(straight).build().intercept(server)?;
    // what was found has a scheme in any case, and lacks name and password
    let authority = given.parse::<Uri>().ok()?.authority()?.clone();
    Uri::builder().scheme(found.uri().scheme()?.clone()).authority(authority).path_and_query("/").build().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use kube::Client;
    use serde_json::json;

    use super::*;

    fn chosen(server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        of_environment(&server.parse().expect("a URL"), value).map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_environments_proxy_is_for_servers_that_it_does_not_except() {
        let server = "https://abc.gr7.eu-west-1.eks.amazonaws.com";
        let proxy = ("HTTPS_PROXY", "http://me:p%40ss@proxy.corp:3128");
        let through = Some("http://me:p%40ss@proxy.corp:3128/".to_owned());
        assert_eq!(chosen(server, &[]), None);
        assert_eq!(chosen(server, &[proxy]), through);
        assert_eq!(chosen(server, &[proxy, ("NO_PROXY", ".corp,10.0.0.0/8")]), through, "the proxy may be in it");
        assert_eq!(chosen(server, &[proxy, ("NO_PROXY", ".corp, .eks.amazonaws.com")]), None);
        assert_eq!(chosen(server, &[proxy, ("NO_PROXY", ".corp,*.eks.amazonaws.com")]), None);
        assert_eq!(chosen("https://10.1.2.3", &[proxy, ("NO_PROXY", ".corp,*")]), None);
        assert_eq!(chosen("https://10.1.2.3", &[proxy, ("no_proxy", "10.0.0.0/8")]), None);
        let bare = [("HTTPS_PROXY", ""), ("https_proxy", "proxy.corp:3128")];
        assert_eq!(chosen(server, &bare).as_deref(), Some("http://proxy.corp:3128/"));
        for here in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443", "http://10.1.2.3"] {
            assert_eq!(chosen(here, &[proxy]), None, "{here}");
        }
    }

    #[tokio::test]
    async fn a_server_is_asked_through_the_proxy_of_the_cluster_that_is_chosen() {
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", proxy.local_addr().expect("an address"));
        let kubeconfig = json!({
            "clusters": [
                { "name": "other", "cluster": { "server": "https://other.invalid", "proxy-url": "http://other.invalid" } },
                { "name": "one", "cluster": { "server": "https://one.invalid", "proxy-url": url } },
            ],
            "contexts": [{ "name": "c", "context": { "cluster": "other" } }],
            "current-context": "c",
        });
        let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions { cluster: Some("one".to_owned()), ..KubeConfigOptions::default() };
        let config = configured(kubeconfig, &options).await.expect("a configuration");
        let client = Client::try_from(config).expect("a client that knows proxies");
        let asked = tokio::task::spawn_blocking(move || {
            let (stream, _) = proxy.accept().expect("a call");
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).expect("a line");
            line
        });
        client.apiserver_version().await.expect_err("the proxy hangs up");
        assert_eq!(asked.await.expect("a line"), "CONNECT one.invalid:443 HTTP/1.1\r\n");
    }
}
