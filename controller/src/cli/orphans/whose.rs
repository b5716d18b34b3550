//! Which cluster is meant, and whether the kubeconfig leads to it: asked about another one, all that lives would seem an orphan, or nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Uri;
use karp_aws::{Clients, eks};
use kube::Config;
use kube::config::Kubeconfig;

use super::super::live::Cluster;
use super::failed;

/// The options of `aws eks get-token` and aws-iam-authenticator that name a cluster.
const NAME_OPTIONS: [&str; 3] = ["--cluster-name", "--cluster-id", "-i"];

/// Names a cluster and its region, as far as they are told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub name: Option<String>,
    pub region: Option<String>,
}

impl Named {
    /// Reads what a kubeconfig's context says of its cluster; nothing without a kubeconfig.
    pub fn by_kubeconfig(cluster: &Cluster) -> Self {
        Kubeconfig::read().map(|read| Self::in_context(&read, cluster.context.as_deref())).unwrap_or_default()
    }

    /// As `aws eks update-kubeconfig` writes it: the cluster's entry is its ARN, and the user runs a command that names cluster and region.
    fn in_context(kubeconfig: &Kubeconfig, context: Option<&str>) -> Self {
        let wanted = context.or(kubeconfig.current_context.as_deref());
        let found = kubeconfig.contexts.iter().find(|found| Some(found.name.as_str()) == wanted);
        let Some(context) = found.and_then(|found| found.context.as_ref()) else { return Self::default() };
        let user = kubeconfig.auth_infos.iter().find(|user| Some(&user.name) == context.user.as_ref());
        let exec = user.and_then(|user| user.auth_info.as_ref()?.exec.as_ref()?.args.as_deref());
        let args = exec.unwrap_or_default();
        let by_arn = by_arn(&context.cluster);
        Self {
            name: NAME_OPTIONS.into_iter().find_map(|option| value(args, option)).or(by_arn.name),
            region: value(args, "--region").or(by_arn.region),
        }
    }

    /// Completes what was told by what the kubeconfig says.
    ///
    /// # Errors
    /// When they are at odds.
    pub fn agreed(self, kubeconfig: Self) -> anyhow::Result<Self> {
        let one = |option: &str, told: Option<String>, said: Option<String>| match (told, said) {
            (Some(told), Some(said)) if told != said => Err(anyhow::anyhow!(
                "{option} {told} is not what the kubeconfig's context is for, {said}: choose another --context, or leave {option} out"
            )),
            (told, said) => Ok(told.or(said)),
        };
        Ok(Self {
            name: one("--cluster-name", self.name, kubeconfig.name)?,
            region: one("--region", self.region, kubeconfig.region)?,
        })
    }
}

/// Makes sure that the API server is that of the EKS cluster, by its CA or its address.
///
/// # Errors
/// When it is not, or that cannot be told.
pub async fn same(aws: &Clients, name: &str, config: &Config) -> anyhow::Result<()> {
    let region = aws.region();
    match eks::describe(aws, name).await {
        Ok(cluster) if is_same(config, &cluster) => Ok(()),
        Ok(cluster) => anyhow::bail!(
            "the kubeconfig leads to {}, and EKS cluster {name} in {region} is at {}: choose another --context or --cluster-name",
            config.cluster_url,
            cluster.endpoint
        ),
        Err(error) if error.is_not_found() => anyhow::bail!(
            "there is no EKS cluster {name} in {region}, and no instance there is that of a NodeClaim: check --cluster-name, --region and the \
             AWS account; where the cluster is gone, say --cluster-gone"
        ),
        Err(error) => Err(failed(&format!("EKS cannot be asked about cluster {name}"), &error)),
    }
}

/// Makes sure that EKS has no cluster of that name.
///
/// # Errors
/// When it has one, or that cannot be told.
pub async fn gone(aws: &Clients, name: &str) -> anyhow::Result<()> {
    match eks::describe(aws, name).await {
        Err(error) if error.is_not_found() => Ok(()),
        Ok(_) => anyhow::bail!(
            "EKS cluster {name} is there in {}: leave --cluster-gone out, and its NodeClaims are asked",
            aws.region()
        ),
        Err(error) => Err(failed(&format!("EKS cannot be asked about cluster {name}"), &error)),
    }
}

/// A tunnel changes the address, not the CA, which is each cluster's own.
fn is_same(config: &Config, cluster: &eks::Cluster) -> bool {
    let authority = der(&cluster.certificate_authority);
    let trusted = config.root_cert.iter().flatten().any(|known| Some(known) == authority.as_ref());
    let place = |uri: &Uri| (uri.host().map(str::to_ascii_lowercase), uri.port_u16().unwrap_or(443));
    trusted || cluster.endpoint.parse::<Uri>().is_ok_and(|endpoint| place(&endpoint) == place(&config.cluster_url))
}

/// Reads the certificate in base64 of PEM.
fn der(authority: &str) -> Option<Vec<u8>> {
    let pem = String::from_utf8(BASE64.decode(authority).ok()?).ok()?;
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
    BASE64.decode(body).ok().filter(|certificate| !certificate.is_empty())
}

/// Reads `arn:PARTITION:eks:REGION:ACCOUNT:cluster/NAME`.
fn by_arn(text: &str) -> Named {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let ["arn", _, "eks", region, _, resource] = parts[..] else { return Named::default() };
    Named { name: resource.strip_prefix("cluster/").map(str::to_owned), region: Some(region.to_owned()) }
}

/// Finds the value of an option: `--region X` or `--region=X`.
fn value(args: &[String], option: &str) -> Option<String> {
    let spaced = args.iter().position(|arg| arg == option).and_then(|at| args.get(at + 1)).cloned();
    let joined = |arg: &String| Some(arg.strip_prefix(option)?.strip_prefix('=')?.to_owned());
    spaced.or_else(|| args.iter().find_map(joined))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(cluster: &str, args: &[&str]) -> Named {
        let kubeconfig = json!({
            "current-context": "now",
            "contexts": [
                { "name": "other", "context": { "cluster": "elsewhere", "user": "nobody" } },
                { "name": "now", "context": { "cluster": cluster, "user": "me" } },
            ],
            "users": [{ "name": "me", "user": { "exec": { "command": "aws", "args": args } } }],
        });
        let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).expect("a kubeconfig");
        assert_eq!(Named::in_context(&kubeconfig, Some("other")), Named::default());
        assert_eq!(Named::in_context(&kubeconfig, Some("missing")), Named::default());
        Named::in_context(&kubeconfig, None)
    }

    fn of(name: &str, region: &str) -> Named {
        let told = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Named { name: told(name), region: told(region) }
    }

    #[test]
    fn a_kubeconfig_names_its_cluster_as_the_aws_cli_writes_it() {
        let arn = "arn:aws-cn:eks:cn-north-1:123456789012:cluster/prod";
        assert_eq!(named(arn, &[]), of("prod", "cn-north-1"));
        let token = ["--region", "eu-west-1", "eks", "get-token", "--cluster-name", "prod", "--output", "json"];
        assert_eq!(named("by-hand", &token), of("prod", "eu-west-1"));
        assert_eq!(named("by-hand", &["token", "--cluster-name=prod"]), of("prod", ""));
        assert_eq!(named("by-hand", &["token", "-i", "prod"]), of("prod", ""));
        assert_eq!(named("sandbox", &[]), Named::default());
    }

    #[test]
    fn what_is_told_completes_the_kubeconfig_and_never_contradicts_it() {
        assert_eq!(of("", "").agreed(of("prod", "eu-west-1")).expect("agreed"), of("prod", "eu-west-1"));
        assert_eq!(of("prod", "eu-west-1").agreed(of("prod", "")).expect("agreed"), of("prod", "eu-west-1"));
        for (told, said) in [("prod", "test"), ("eu-west-1", "us-east-1")] {
            let error = of(told, told).agreed(of(said, said)).expect_err("at odds").to_string();
            assert!(error.contains(told) && error.contains(said), "{error}");
        }
    }

    #[test]
    fn an_api_server_is_known_by_its_authority_or_its_address() {
        let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", BASE64.encode("authority"));
        let cluster = eks::Cluster {
            endpoint: "https://ABC.gr7.eu-west-1.eks.amazonaws.com".to_owned(),
            certificate_authority: BASE64.encode(pem),
            ..eks::Cluster::default()
        };
        let at = |url: &str| Config::new(url.parse().expect("a URL"));
        assert!(is_same(&at("https://abc.gr7.eu-west-1.eks.amazonaws.com:443"), &cluster));
        assert!(!is_same(&at("https://127.0.0.1:8443"), &cluster));
        let mut tunnel = at("https://127.0.0.1:8443");
        tunnel.root_cert = Some(vec![b"authority".to_vec()]);
        assert!(is_same(&tunnel, &cluster));
        tunnel.root_cert = Some(vec![Vec::new()]);
        assert!(
            !is_same(&tunnel, &eks::Cluster { certificate_authority: String::new(), ..cluster }),
            "none is not one"
        );
    }
}
