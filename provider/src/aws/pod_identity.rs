//! EKS pod identity associations: which role the pods of a service account get.

use tfplugin::Context;

use super::role;
use super::tags::{Change, Tags, is_same_role, retag_eks};
use super::wait::settle;
use crate::report::{Failure, Kind};
use crate::session::Aws;

/// Whose pods get the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    pub cluster: &'a str,
    pub namespace: &'a str,
    pub service_account: &'a str,
}

/// An association as EKS describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: String,
    pub arn: String,
    pub role_arn: String,
    pub tags: Tags,
}

/// An association as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub role_arn: &'a str,
    pub tags: &'a Tags,
    /// Tags that karp put there before: what is wanted of them no more goes.
    pub owned: &'a Tags,
}

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} in cluster {:?}", self.namespace, self.service_account, self.cluster)
    }
}

/// Finds the association of a service account.
pub async fn find(aws: &Aws, subject: &Subject<'_>) -> Result<Option<Found>, Failure> {
    let doing = format!("read the pod identity association of {subject}");
    let call = aws.eks().list_pod_identity_associations().cluster_name(subject.cluster);
    let list = match call.namespace(subject.namespace).service_account(subject.service_account).send().await {
        Ok(list) => list,
        Err(e) => match Failure::aws(&doing, e) {
            failure if failure.is_missing() => return Ok(None),
            failure => return Err(failure),
        },
    };
    let Some(id) = list.associations().first().and_then(|found| found.association_id()) else { return Ok(None) };
    Ok(find_by_id(aws, subject.cluster, id).await?.map(|(_, _, found)| found))
}

/// Finds the association of a service account as a refresh does: by the id that it had, else by a list.
pub async fn look(aws: &Aws, subject: &Subject<'_>, known: Option<&str>) -> Result<Option<Found>, Failure> {
    if let Some(id) = known
        && let Some((namespace, service_account, found)) = find_by_id(aws, subject.cluster, id).await?
        && (namespace.as_str(), service_account.as_str()) == (subject.namespace, subject.service_account)
    {
        return Ok(Some(found));
    }
    find(aws, subject).await
}

/// Reads the association of that id: namespace, service account, and what they get.
pub async fn find_by_id(aws: &Aws, cluster: &str, id: &str) -> Result<Option<(String, String, Found)>, Failure> {
    let doing = format!("read pod identity association {id} of cluster {cluster:?}");
    let call = aws.eks().describe_pod_identity_association().cluster_name(cluster).association_id(id);
    match call.send().await {
        Ok(answer) => Ok(answer.association().map(|found| {
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            let (arn, role_arn) = (text(found.association_arn()), text(found.role_arn()));
            let tags = found.tags().map(|tags| tags.clone().into_iter().collect()).unwrap_or_default();
            (text(found.namespace()), text(found.service_account()), Found { id: id.to_owned(), arn, role_arn, tags })
        })),
        Err(e) => match Failure::aws(&doing, e) {
            failure if failure.is_missing() => Ok(None),
            failure => Err(failure),
        },
    }
}

/// Finds the namespace and service account that get a role, for an import that does not know them.
pub async fn find_by_role(
    aws: &Aws,
    subject: &Subject<'_>,
    role_arn: &str,
) -> Result<Option<(String, String)>, Failure> {
    let doing = format!("list the pod identity associations of cluster {:?}", subject.cluster);
    let mut pages =
        aws.eks().list_pod_identity_associations().cluster_name(subject.cluster).into_paginator().items().send();
    while let Some(entry) = pages.next().await {
        let entry = entry.map_err(|e| Failure::aws(&doing, e))?;
        let (Some(namespace), Some(service_account)) = (entry.namespace(), entry.service_account()) else { continue };
        let found = find(aws, &Subject { cluster: subject.cluster, namespace, service_account }).await?;
        if found.is_some_and(|found| found.role_arn == role_arn) {
            return Ok(Some((namespace.to_owned(), service_account.to_owned())));
        }
    }
    Ok(None)
}

/// Says that the pods of a service account have another role already, which nobody asked to take from them.
pub fn taken(subject: &Subject<'_>, role: &str, found: &Found) -> Failure {
    let message = format!("its pods have the role {} already", found.role_arn);
    Failure::new(Kind::Exists, format!("associate {subject} with role {role}"), message).at("service_account")
}

/// Refuses to take a service account's pods from another role than that of this path and name. One that is gone gives them nothing: nobody loses by
/// that its association is put to use.
pub async fn check_free(aws: &Aws, subject: &Subject<'_>, path: &str, name: &str) -> Result<(), Failure> {
    let Some(found) = find(aws, subject).await? else { return Ok(()) };
    if found.role_arn.ends_with(&format!(":role{path}{name}")) || is_gone(aws, &found.role_arn).await? {
        return Ok(());
    }
    Err(taken(subject, name, &found))
}

/// Says whether there is no such role any more. EKS takes roles of the cluster's own account alone.
async fn is_gone(aws: &Aws, role_arn: &str) -> Result<bool, Failure> {
    match role::is_there(aws.iam(), role_arn.rsplit('/').next().unwrap_or_default()).await {
        Ok(is_there) => Ok(!is_there),
        // of what may not be seen nobody can say that it is gone
        Err(failure) if failure.kind == Kind::Denied => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Makes the association, or brings an existing one to what is wanted.
pub async fn ensure(aws: &Aws, ctx: &Context, subject: &Subject<'_>, wanted: &Wanted<'_>) -> Result<Found, Failure> {
    let doing = format!("associate {subject} with role {}", wanted.role_arn);
    settle(ctx, &doing, || async {
        match find(aws, subject).await? {
            Some(found) => converge(aws, subject, found, wanted).await,
            None => make(aws, subject, wanted).await,
        }
    })
    .await
}

async fn make(aws: &Aws, subject: &Subject<'_>, wanted: &Wanted<'_>) -> Result<Found, Failure> {
    let doing = format!("associate {subject} with role {}", wanted.role_arn);
    let call = aws.eks().create_pod_identity_association().cluster_name(subject.cluster).namespace(subject.namespace);
    let call = call.service_account(subject.service_account).role_arn(wanted.role_arn);
    let tags = wanted.tags.clone().into_iter().collect();
    let answer = call.set_tags(Some(tags)).send().await.map_err(|e| new_role(Failure::aws(&doing, e)))?;
    let made = answer.association().and_then(|made| Some((made.association_id()?, made.association_arn()?)));
    let made = made.map(|(id, arn)| (id.to_owned(), arn.to_owned()));
    let (id, arn) =
        made.ok_or_else(|| Failure::new(Kind::Unexpected, &doing, "EKS answered without an association's id"))?;
    Ok(Found { id, arn, role_arn: wanted.role_arn.to_owned(), tags: wanted.tags.clone() })
}

/// Points an association at the role, and changes its tags.
async fn converge(aws: &Aws, subject: &Subject<'_>, found: Found, wanted: &Wanted<'_>) -> Result<Found, Failure> {
    let doing = format!("associate {subject} with role {}", wanted.role_arn);
    if found.role_arn != wanted.role_arn {
        let call = aws.eks().update_pod_identity_association().cluster_name(subject.cluster).association_id(&found.id);
        call.role_arn(wanted.role_arn).send().await.map_err(|e| new_role(Failure::aws(&doing, e)))?;
    }
    retag_eks(aws, &found.arn, &Change::between(wanted.tags, &found.tags, wanted.owned)).await?;
    Ok(Found { role_arn: wanted.role_arn.to_owned(), ..found })
}

/// Deletes the association that gives pods this role; one that is gone already is fine. One that gives them another role is that one's by now, as
/// where `create_before_destroy` makes it first.
pub async fn release(aws: &Aws, subject: &Subject<'_>, id: &str, role_arn: &str) -> Result<(), Failure> {
    match find_by_id(aws, subject.cluster, id).await? {
        Some((_, _, found)) if found.role_arn != role_arn => Ok(()),
        _ => delete(aws, subject, id).await,
    }
}

/// Deletes the associations that give pods this role and were made with it, as their tags tell, but for the one that is `kept`. EKS shows who gets which
/// role one association at a time, so this is for a role that may have one which no state knows.
pub async fn release_left(
    aws: &Aws,
    cluster: &str,
    role_arn: &str,
    tags: &Tags,
    kept: Option<Subject<'_>>,
) -> Result<(), Failure> {
    for id in ids(aws, cluster).await? {
        let found = match find_by_id(aws, cluster, &id).await {
            Err(failure) if failure.kind == Kind::Denied => continue,
            found => found?,
        };
        let Some((namespace, service_account, found)) = found else { continue };
        let subject = Subject { cluster, namespace: &namespace, service_account: &service_account };
        if found.role_arn == role_arn && is_same_role(&found.tags, tags) && kept != Some(subject) {
            delete(aws, &subject, &id).await?;
        }
    }
    Ok(())
}

/// Lists the associations of a cluster; none where it is gone, or where nobody may see them.
async fn ids(aws: &Aws, cluster: &str) -> Result<Vec<String>, Failure> {
    let mut pages = aws.eks().list_pod_identity_associations().cluster_name(cluster).into_paginator().items().send();
    let mut all = Vec::new();
    while let Some(entry) = pages.next().await {
        match entry.map_err(|e| Failure::aws(format!("list the pod identity associations of cluster {cluster:?}"), e)) {
            Ok(entry) => all.extend(entry.association_id),
            Err(failure) if failure.is_missing() || failure.kind == Kind::Denied => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(all)
}

async fn delete(aws: &Aws, subject: &Subject<'_>, id: &str) -> Result<(), Failure> {
    match aws.eks().delete_pod_identity_association().cluster_name(subject.cluster).association_id(id).send().await {
        Ok(_) => Ok(()),
        Err(e) => match Failure::aws(format!("delete the pod identity association of {subject}"), e) {
            failure if failure.is_missing() => Ok(()),
            failure => Err(failure),
        },
    }
}

/// EKS checks the role and its trust, which IAM may not show everywhere yet.
fn new_role(failure: Failure) -> Failure {
    let message = failure.message.to_ascii_lowercase();
    let of_role = ["trust", "assume", "role provided in the request does not exist"];
    failure.unsettled_if(|f| f.kind == Kind::Invalid && of_role.iter().any(|words| message.contains(words)))
}
