//! The pod identity association of the controller's role: planned, made with it, and found again where a run was killed.

use tfplugin::{Context, Diagnostics, PlannedChange, Value};

use super::Model;
use crate::aws::tags::{CLUSTER_KEY, Tags, for_role};
use crate::aws::{pod_identity, policies};
use crate::report::{Failure, Kind};
use crate::session::{Aws, Session};

/// Plans the association: known as long as the role is given to the same pods.
pub fn plan_association(change: &mut PlannedChange) {
    let pod_identity = change.planned.get("auth").as_str() == Some("pod_identity");
    let same = ["cluster_name", "namespace", "service_account"].iter().all(|name| !change.changed(*name));
    let prior = change.prior.get("association_id").clone();
    let planned = match (pod_identity, same && !prior.is_null()) {
        (false, _) => Value::Null,
        (true, true) => prior,
        (true, false) => Value::Unknown,
    };
    change.planned.set("association_id", planned);
}

/// Refuses to take a service account's pods from the role that they have, unless that is asked for.
pub async fn check_association(session: &Session, aws: &Aws, model: &Model) -> Result<(), Failure> {
    if !model.uses_pod_identity() || model.adopt.unwrap_or(session.model().adopt_existing) {
        return Ok(());
    }
    let (path, name) = (model.path.as_deref().unwrap_or("/"), model.name.as_deref().unwrap_or_default());
    pod_identity::check_free(aws, &model.subject(), path, name).await
}

/// Says whether a change gives the role to pods of a service account that it was not given to before.
pub fn is_new_to(before: &Model, model: &Model) -> bool {
    !before.uses_pod_identity() || before.subject() != model.subject()
}

/// Makes the pod identity association, where one is wanted, with the tags of the role and one that tells that it was made
/// with it. One that is there gets what it lacks of them, as that of an earlier version does.
pub async fn associate(
    aws: &Aws,
    ctx: &Context,
    model: &Model,
    state: Value,
    owned: &Tags,
) -> Result<Value, Diagnostics> {
    if !model.uses_pod_identity() {
        return Ok(state.with("association_id", Value::Null));
    }
    let role = state.get("arn").as_str().unwrap_or_default().to_owned();
    if role.is_empty() {
        return Err(Failure::new(Kind::Unexpected, "associate the controller's role", "its ARN is not known").into());
    }
    let tags = for_role(model.name(), &tfplugin::from_value(state.get("tags_all"))?);
    let wanted = pod_identity::Wanted { role_arn: &role, tags: &tags, owned };
    let found = pod_identity::ensure(aws, ctx, &model.subject(), &wanted).await?;
    Ok(state.with("association_id", found.id))
}

/// Deletes the associations that a run which was killed made for a role, but for that of the pods which are to have it. Such a run let pods have the role
/// first, and took the association away that state knew: any other role has none.
pub async fn release_left(
    aws: &Aws,
    session: &Session,
    prior: &Value,
    wanted: Option<&Model>,
) -> Result<(), Diagnostics> {
    let before: Model = tfplugin::from_value(prior)?;
    let lets_pods = prior.get("assume_role_policy").as_str() == Some(&*policies::pod_identity_trust());
    if before.association_id.is_some() || !lets_pods {
        return Ok(());
    }
    let tags = for_role(before.name(), &session.owned(prior));
    let cluster = tags.get(CLUSTER_KEY).map_or(before.subject().cluster, String::as_str);
    let kept = wanted.filter(|wanted| wanted.uses_pod_identity()).map(Model::subject);
    Ok(pod_identity::release_left(aws, cluster, before.arn(), &tags, kept).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_were_never_the_roles_are_asked_for() {
        let model = |auth: &str, account: &str| Model {
            auth: Some(auth.to_owned()),
            service_account: Some(account.to_owned()),
            ..Model::default()
        };
        let (irsa, one, other) = (model("irsa", "a"), model("pod_identity", "a"), model("pod_identity", "b"));
        let had = Model { association_id: Some("a-1".to_owned()), ..one.clone() };
        // a refresh that found another role's association has forgotten its id
        assert!(!is_new_to(&had, &one) && !is_new_to(&one, &one), "drift is healed");
        assert!(is_new_to(&irsa, &one) && is_new_to(&one, &other) && is_new_to(&Model::default(), &one));
    }
}
