//! The mark of [`crate::marks`] as a tag of AWS objects: put on with the creation, known again, taken off.

use std::collections::BTreeSet;

use karp_domain::api::labels::UNFINISHED;

use super::Origin;
use super::tags::{CLUSTER_KEY, Change, IamObject, Tags, retag_eks, retag_queue};
use crate::marks::Mark;
use crate::report::Failure;
use crate::session::{Aws, Session};

/// An object that was made with a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// An object of IAM.
    Iam(IamObject),
    /// A queue, by URL.
    Queue(String),
    /// Any object of EKS, by ARN.
    Eks(String),
}

impl Marked {
    /// Takes the mark off.
    pub async fn unmark(&self, aws: &Aws) -> Result<(), Failure> {
        let change = Change { put: Tags::new(), remove: BTreeSet::from([UNFINISHED.to_owned()]) };
        match self {
            Self::Iam(object) => object.retag(aws.iam(), &change).await,
            Self::Queue(url) => retag_queue(aws, url, &change).await,
            Self::Eks(arn) => retag_eks(aws, arn, &change).await,
        }
    }
}

impl Mark {
    /// Adds the mark to the tags that an object is made with.
    pub fn on(&self, tags: &Tags) -> Tags {
        let mut marked = tags.clone();
        marked.insert(UNFINISHED.to_owned(), self.text().to_owned());
        marked
    }

    /// Gives the tags of an object that exists and is this creation's to go on with, marked and of the same cluster. The mark, which stays until the
    /// creation is answered, is left out.
    pub fn resumed(&self, actual: &Tags, wanted: &Tags) -> Option<Tags> {
        let is_own = actual.get(CLUSTER_KEY) == wanted.get(CLUSTER_KEY)
            && self.continues(actual.get(UNFINISHED).map(String::as_str));
        is_own
            .then(|| actual.iter().filter(|(key, _)| *key != UNFINISHED).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}

/// Says whether an object that no state knows was left by a run that was killed, by the tags that what it belongs to has: it is marked, and of the same
/// cluster. Its name must say what it belongs to, so that the mark's age does not matter.
pub fn is_left(actual: &Tags, owner: &Tags) -> bool {
    actual.contains_key(UNFINISHED) && actual.get(CLUSTER_KEY) == owner.get(CLUSTER_KEY)
}

/// Has the marks of objects taken off that state will know of, however their creation ends: state keeps what was made also where it fails.
pub struct Answered<'s> {
    session: &'s Session,
    aws: Aws,
    made: Vec<Marked>,
}

impl Answered<'_> {
    /// Adds an object that was made, and that state has from here on; one that was adopted has no mark.
    pub fn made(&mut self, origin: Origin, object: Marked) {
        if origin == Origin::Made {
            self.made.push(object);
        }
    }
}

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        for object in self.made.drain(..) {
            let aws = self.aws.clone();
            self.session.finishing().after_answer(move || {
                let (object, aws) = (object.clone(), aws.clone());
                async move { object.unmark(&aws).await }
            });
        }
    }
}

impl Session {
    /// Begins to gather what a creation makes.
    pub fn answered(&self, aws: &Aws) -> Answered<'_> {
        Answered { session: self, aws: aws.clone(), made: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_marked_and_of_the_cluster_is_gone_on_with() {
        let of = |cluster: &str| Tags::from([(CLUSTER_KEY.to_owned(), cluster.to_owned())]);
        let mark = Mark::new();
        assert_eq!(mark.resumed(&mark.on(&of("a")), &of("a")), Some(of("a")));
        assert_eq!(mark.resumed(&mark.on(&of("b")), &of("a")), None, "another cluster's");
        assert_eq!(mark.resumed(&of("a"), &of("a")), None, "finished");
        assert_eq!(mark.resumed(&mark.on(&Tags::new()), &Tags::new()), Some(Tags::new()), "neither names a cluster");
        assert!(is_left(&mark.on(&of("a")), &of("a")));
        assert!(!is_left(&mark.on(&of("b")), &of("a")) && !is_left(&of("a"), &of("a")));
    }
}
