//! What EC2 is asked about single instances, in as few calls as can be.

use std::collections::BTreeMap;

use karp_aws::instances::{self, BATCH_TAG, CLAIM_TAG, IDS_PER_FILTER, IDS_PER_TERMINATION, Instance};
use karp_aws::{Clients, Error};

use super::together::{Together, WINDOW};
use crate::cloud::CloudError;

/// Instances by id, or by claim: what one call tells of all that were asked for.
type Told<T> = Result<BTreeMap<String, T>, CloudError>;

/// Says whether EC2 knows an instance that was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ends, or has ended.
    Asked,
    /// There is none of this id.
    Unknown,
}

/// Gathers questions of one kind into one call.
pub struct Asked {
    by_id: Together<Told<Instance>>,
    by_claim: Together<Told<Vec<Instance>>>,
    by_batch: Together<Told<Vec<Instance>>>,
    ends: Together<BTreeMap<String, Result<Ended, CloudError>>>,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            by_id: Together::new(WINDOW, IDS_PER_FILTER),
            by_claim: Together::new(WINDOW, IDS_PER_FILTER),
            by_batch: Together::new(WINDOW, IDS_PER_FILTER),
            ends: Together::new(WINDOW, IDS_PER_TERMINATION),
        }
    }
}

impl Asked {
    /// Describes an instance; `None` when EC2 does not list it.
    pub async fn describe(&self, clients: &Clients, id: &str) -> Result<Option<Instance>, CloudError> {
        let clients = clients.clone();
        let told = self.by_id.ask(id, |ids| async move {
            let found = instances::describe(&clients, &ids).await?;
            Ok(found.into_iter().map(|instance| (instance.id.clone(), instance)).collect())
        });
        match &*told.await {
            Ok(found) => Ok(found.get(id).cloned()),
            Err(error) => Err(error.clone()),
        }
    }

    /// Lists the instances that carry the cluster's tag and were launched for a claim, and have not ended.
    pub async fn of_claim(
        &self,
        clients: &Clients,
        cluster: (String, String),
        claim: &str,
    ) -> Result<Vec<Instance>, CloudError> {
        tagged(&self.by_claim, clients, cluster, CLAIM_TAG, claim).await
    }

    /// The same of those that were launched with a batch.
    pub async fn of_batch(
        &self,
        clients: &Clients,
        cluster: (String, String),
        batch: &str,
    ) -> Result<Vec<Instance>, CloudError> {
        tagged(&self.by_batch, clients, cluster, BATCH_TAG, batch).await
    }

    /// Asks EC2 to end an instance.
    pub async fn terminate(&self, clients: &Clients, id: &str) -> Result<Ended, CloudError> {
        let clients = clients.clone();
        let told = self.ends.ask(id, |ids| async move {
            let answers = instances::terminate(&clients, &ids).await;
            answers.into_iter().map(|(id, answer)| (id, ended(answer))).collect()
        });
        told.await.get(id).cloned().unwrap_or(Ok(Ended::Asked))
    }
}

/// Lists the cluster's instances whose tag has a value, together with all who ask for other values of it.
async fn tagged(
    asked: &Together<Told<Vec<Instance>>>,
    clients: &Clients,
    cluster: (String, String),
    key: &'static str,
    value: &str,
) -> Result<Vec<Instance>, CloudError> {
    let clients = clients.clone();
    let told = asked.ask(value, move |values| async move {
        let mut by_value: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
        for instance in instances::list_of(&clients, &cluster, key, &values).await? {
            let value = instance.tags.get(key).cloned().unwrap_or_default();
            by_value.entry(value).or_default().push(instance);
        }
        Ok(by_value)
    });
    match &*told.await {
        Ok(found) => Ok(found.get(value).cloned().unwrap_or_default()),
        Err(error) => Err(error.clone()),
    }
}

fn ended(answer: Result<(), Error>) -> Result<Ended, CloudError> {
    match answer {
        Ok(()) => Ok(Ended::Asked),
        Err(error) if error.is_not_found() => Ok(Ended::Unknown),
        Err(error) => Err(error.into()),
    }
}
