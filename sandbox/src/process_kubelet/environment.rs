//! The environment and the command line of a container, as a kubelet works them out.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector, Secret,
};
use kube::{Api, Client, ResourceExt as _};

use crate::node_bridge::amount_of;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// Works out a container's variables over those that the kubelet gives.
///
/// # Errors
/// When something that it refers to does not exist.
pub async fn variables(client: &Client, pod: &Pod, container: &Container, given: &Variables) -> Result<Variables> {
    let sources = Sources { client, namespace: pod.namespace().unwrap_or_default() };
    let mut found = given.clone();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let values = match (&from.config_map_ref, &from.secret_ref) {
            (Some(map), _) => sources.config_map(&map.name, map.optional.unwrap_or(false)).await?,
            (None, Some(secret)) => sources.secret(&secret.name, secret.optional.unwrap_or(false)).await?,
            (None, None) => BTreeMap::new(),
        };
        found.extend(values.into_iter().map(|(key, value)| (format!("{prefix}{key}"), value)));
    }
    for variable in container.env.iter().flatten() {
        if let Some(value) = sources.value(pod, container, variable, &found).await? {
            found.insert(variable.name.clone(), value);
        }
    }
    Ok(found)
}

struct Sources<'a> {
    client: &'a Client,
    namespace: String,
}

impl Sources<'_> {
    async fn value(
        &self,
        pod: &Pod,
        container: &Container,
        variable: &EnvVar,
        found: &Variables,
    ) -> Result<Option<String>> {
        if let Some(from) = &variable.value_from {
            return self.referred(pod, container, from).await.with_context(|| format!("variable {}", variable.name));
        }
        Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), found)))
    }

    async fn referred(&self, pod: &Pod, container: &Container, from: &EnvVarSource) -> Result<Option<String>> {
        if let Some(field) = &from.field_ref {
            return field_of(pod, field).map(Some);
        }
        if let Some(resource) = &from.resource_field_ref {
            return resource_of(container, resource).map(Some);
        }
        let (kind, key, optional, values) = if let Some(source) = &from.config_map_key_ref {
            let optional = source.optional.unwrap_or(false);
            (
                format!("config map {}", source.name),
                &source.key,
                optional,
                self.config_map(&source.name, optional).await?,
            )
        } else if let Some(source) = &from.secret_key_ref {
            let optional = source.optional.unwrap_or(false);
            (format!("secret {}", source.name), &source.key, optional, self.secret(&source.name, optional).await?)
        } else {
            bail!("the sandbox does not know this source");
        };
        match values.get(key) {
            None if !optional => bail!("{kind} has no key {key}"),
            value => Ok(value.cloned()),
        }
    }

    async fn config_map(&self, name: &str, optional: bool) -> Result<Variables> {
        let found = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace).get_opt(name).await?;
        match found {
            None if !optional => bail!("configmap \"{name}\" not found"),
            found => Ok(found.and_then(|map| map.data).unwrap_or_default()),
        }
    }

    async fn secret(&self, name: &str, optional: bool) -> Result<Variables> {
        let found = Api::<Secret>::namespaced(self.client.clone(), &self.namespace).get_opt(name).await?;
        match found {
            None if !optional => bail!("secret \"{name}\" not found"),
            found => {
                let data = found.and_then(|secret| secret.data).unwrap_or_default().into_iter();
                Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
            }
        }
    }
}

fn field_of(pod: &Pod, field: &ObjectFieldSelector) -> Result<String> {
    let keyed = |values: &BTreeMap<String, String>, prefix: &str| {
        let key = field.field_path.strip_prefix(prefix)?.strip_suffix("']")?;
        Some(values.get(key).cloned().unwrap_or_default())
    };
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let value = match field.field_path.as_str() {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" => status.and_then(|status| status.pod_ip.clone()),
        "status.hostIP" => status.and_then(|status| status.host_ip.clone()),
        _ => keyed(pod.labels(), "metadata.labels['").or_else(|| keyed(pod.annotations(), "metadata.annotations['")),
    };
    value.with_context(|| format!("the pod has no field {}", field.field_path))
}

/// Resolves `limits.cpu` and the like in units of the divisor, rounded up.
fn resource_of(container: &Container, field: &ResourceFieldSelector) -> Result<String> {
    let resources = container.resources.clone().unwrap_or_default();
    let (kind, name) = field
        .resource
        .split_once('.')
        .with_context(|| format!("a resource like limits.cpu, not {}", field.resource))?;
    let amounts = if kind == "limits" { resources.limits } else { resources.requests }.unwrap_or_default();
    let amount = amounts.get(name).and_then(|quantity| amount_of(name, &quantity.0));
    let amount = amount.with_context(|| format!("the container sets no {}", field.resource))?;
    let divisor = field.divisor.as_ref().and_then(|divisor| amount_of(name, &divisor.0)).filter(|divisor| *divisor > 0);
    let whole = if name == "cpu" { 1000 } else { 1 };
    Ok(amount.div_ceil(divisor.unwrap_or(whole)).to_string())
}

/// Puts the values of `$(NAME)` in; unknown names stay as they are, `$$` is one dollar.
pub fn expand(text: &str, variables: &Variables) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match variables.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_expanded_as_kubernetes_does() {
        let variables = Variables::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in
            [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$A $(A", "$A $(A"), ("x", "x"), ("$", "$")]
        {
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }

    #[test]
    fn the_downward_api_is_read() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "p", "namespace": "n", "labels": { "a/b": "c" } }, "spec": { "nodeName": "host", "containers": [] }
        }))
        .unwrap();
        let field =
            |path: &str| field_of(&pod, &ObjectFieldSelector { field_path: path.to_owned(), api_version: None });
        assert_eq!(field("metadata.labels['a/b']").unwrap(), "c");
        assert_eq!(field("metadata.labels['none']").unwrap(), "");
        assert_eq!(field("spec.nodeName").unwrap(), "host");
        assert!(field("metadata.nothing").is_err());
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c", "resources": { "limits": { "cpu": "1500m", "memory": "1Gi" } }
        }))
        .unwrap();
        let resource = |name: &str| {
            resource_of(
                &container,
                &ResourceFieldSelector { resource: name.to_owned(), ..ResourceFieldSelector::default() },
            )
        };
        assert_eq!(resource("limits.cpu").unwrap(), "2");
        assert_eq!(resource("limits.memory").unwrap(), "1073741824");
        assert!(resource("requests.cpu").is_err());
    }
}
