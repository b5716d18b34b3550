//! Parameters of Systems Manager, remembered: AWS's public ones change a few times a month, and every node class asks for several.

use crate::config::Clients;
use crate::error::Error;
use moka::sync::Cache;
use std::collections::BTreeMap;
use std::time::Duration;

const GET: &str = "ssm:GetParameter";
/// AWS's own parameters.
const PUBLIC: &str = "/aws/service/";
/// How long a public parameter is good (Karpenter: 24 h).
const PUBLIC_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long a parameter of the user's own is good (Karpenter: 5 min).
const OWN_LIFETIME: Duration = Duration::from_secs(300);
/// How long a parameter stays unknown; AWS publishes not every variant of every image.
const ABSENT_LIFETIME: Duration = Duration::from_secs(3600);
/// Far more than the images of every family and version that a cluster could name.
const CAPACITY: u64 = 1_000;

/// Remembers the values of parameters.
#[derive(Debug, Clone)]
pub struct Parameters {
    public: Cache<String, String>,
    own: Cache<String, String>,
    absent: Cache<String, ()>,
}

impl Default for Parameters {
    fn default() -> Self {
        fn cache<V: Clone + Send + Sync + 'static>(lifetime: Duration) -> Cache<String, V> {
            Cache::builder().max_capacity(CAPACITY).time_to_live(lifetime).build()
        }
        Self { public: cache(PUBLIC_LIFETIME), own: cache(OWN_LIFETIME), absent: cache(ABSENT_LIFETIME) }
    }
}

impl Parameters {
    /// Reads the parameters that exist, by name. One call for each: the policies that Karpenter's users have allow no more.
    ///
    /// # Errors
    /// Any failure of a call; a parameter that does not exist is absent from the answer.
    pub async fn get(&self, clients: &Clients, names: &[String]) -> Result<BTreeMap<String, String>, Error> {
        let read = |name: &String| {
            let name = name.clone();
            async move { Ok::<_, Error>(self.one(clients, &name).await?.map(|value| (name, value))) }
        };
        let values = futures::future::try_join_all(names.iter().map(read)).await?;
        Ok(values.into_iter().flatten().collect())
    }

    /// Forgets the parameters with these values: what they name is no longer good.
    pub fn forget(&self, values: &[&str]) {
        for cache in [&self.public, &self.own] {
            let stale: Vec<_> = cache.iter().filter(|(_, value)| values.contains(&value.as_str())).collect();
            for (name, _) in stale {
                cache.invalidate(&*name);
            }
        }
    }

    async fn one(&self, clients: &Clients, name: &str) -> Result<Option<String>, Error> {
        let public = name.starts_with(PUBLIC);
        let cache = if public { &self.public } else { &self.own };
        if let Some(value) = cache.get(name) {
            return Ok(Some(value));
        }
        if public && self.absent.contains_key(name) {
            return Ok(None);
        }
        let answer = clients.ssm().get_parameter().name(name).send().await;
        match answer.map_err(|error| Error::from_sdk(GET, error)) {
            Ok(answer) => {
                let value = answer.parameter.and_then(|parameter| parameter.value);
                if let Some(value) = &value {
                    cache.insert(name.to_owned(), value.clone());
                }
                Ok(value)
            }
            Err(error) if error.is_not_found() => {
                self.absent.insert(name.to_owned(), ());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_longer_good_is_asked_for_again() {
        let parameters = Parameters::default();
        parameters.public.insert("/aws/service/a".into(), "ami-1".into());
        parameters.public.insert("/aws/service/b".into(), "ami-2".into());
        parameters.own.insert("/mine".into(), "ami-1".into());
        parameters.forget(&["ami-1"]);
        assert!(!parameters.public.contains_key("/aws/service/a") && !parameters.own.contains_key("/mine"));
        assert!(parameters.public.contains_key("/aws/service/b"));
    }
}
