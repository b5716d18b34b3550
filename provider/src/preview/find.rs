//! What the changed selectors of a class find in EC2, so far as AWS can be asked at plan.

use std::collections::BTreeSet;

use karp_aws::config::Clients;
use karp_aws::parameters::Parameters;
use karp_aws::{Error, images, node_class, security_groups, subnets};
use karp_domain::api::{Ami, Ec2NodeClass, Ec2NodeClassSpec, Subnet};
use kube::api::Api;
use kube::{Client, ResourceExt};

use super::selection::Selection;
use crate::provider::Model;
use crate::session::Session;

/// Looks up what each changed selector finds. What cannot be asked is left open: a plan goes on without AWS.
pub async fn find(session: &Session, client: &Client, before: &Ec2NodeClass, after: &Ec2NodeClass) -> Selection {
    let (old, new) = (&before.spec, &after.spec);
    let changed = (
        old.ami_selector_terms != new.ami_selector_terms,
        old.subnet_selector_terms != new.subnet_selector_terms,
        old.security_group_selector_terms != new.security_group_selector_terms,
    );
    if changed == (false, false, false) || !names_aws(session.model()) {
        return Selection::default();
    }
    let aws = match session.aws().await {
        Ok(aws) => aws.clients(),
        Err(failure) => {
            tracing::info!(%failure, "AWS is not asked what the class's selectors find");
            return Selection::default();
        }
    };
    let name = after.name_any();
    let (live, images, subnets, security_groups) = futures::join!(
        live(client, &name),
        asked(changed.0, "images", images_of(aws, client, new)),
        asked(changed.1, "subnets", subnets_of(aws, new)),
        asked(changed.2, "security groups", groups_of(aws, new)),
    );
    let before = live.and_then(|class| class.status).unwrap_or_default();
    Selection { before, images, subnets, security_groups }
}

/// Says whether the provider block tells in which AWS the cluster is: by EKS, or by a region beside the API server's address. A shell's own
/// region may be another one, where a selector that is right finds nothing.
fn names_aws(model: &Model) -> bool {
    model.kubernetes.is_none() || model.aws.region.is_some() || model.cluster_name.is_some()
}

/// The class as it is in the cluster, with what the controller has found for it.
async fn live(client: &Client, name: &str) -> Option<Ec2NodeClass> {
    Api::<Ec2NodeClass>::all(client.clone()).get_opt(name).await.ok().flatten()
}

/// Asks where it matters; a failure leaves the answer open.
async fn asked<T>(matters: bool, what: &str, answer: impl Future<Output = Result<T, Error>>) -> Option<T> {
    if !matters {
        return None;
    }
    answer.await.map_err(|error| tracing::info!(%error, "the class's {what} are not known at plan")).ok()
}

async fn images_of(aws: &Clients, client: &Client, spec: &Ec2NodeClassSpec) -> Result<Vec<Ami>, Error> {
    let parameters = Parameters::default();
    let found = match node_class::alias(spec)? {
        Some(alias) => images::by_alias(aws, &parameters, &alias, &version(client).await?).await,
        None => images::find(aws, &parameters, &node_class::image_terms(spec)).await,
    };
    match found {
        Ok(found) => Ok(found.into_iter().map(node_class::ami).collect()),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The cluster's Kubernetes version, such as `1.33`, as its API server tells it. EKS writes `33+`.
async fn version(client: &Client) -> Result<String, Error> {
    let told = client.apiserver_version().await;
    let told = told
        .map_err(|error| Error::Unreachable { action: "ask the API server's version", message: error.to_string() })?;
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    Ok(format!("{}.{}", digits(&told.major), digits(&told.minor)))
}

async fn subnets_of(aws: &Clients, spec: &Ec2NodeClassSpec) -> Result<Vec<Subnet>, Error> {
    let found = subnets::find(aws, &node_class::subnet_terms(spec)).await?;
    Ok(found.iter().map(node_class::subnet).collect())
}

async fn groups_of(aws: &Clients, spec: &Ec2NodeClassSpec) -> Result<BTreeSet<String>, Error> {
    let found = security_groups::find(aws, &node_class::security_group_terms(spec)).await?;
    Ok(found.into_iter().map(|group| group.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Kubernetes;

    #[test]
    fn aws_is_asked_only_where_the_cluster_is() {
        let by_address = || Model { kubernetes: Some(Kubernetes::default()), ..Model::default() };
        assert!(!names_aws(&by_address()), "the region would be the shell's");
        assert!(names_aws(&Model::default()), "by EKS");
        assert!(names_aws(&Model { cluster_name: Some("prod".to_owned()), ..by_address() }));
        let mut regional = by_address();
        regional.aws.region = Some("eu-west-1".to_owned());
        assert!(names_aws(&regional));
    }
}
