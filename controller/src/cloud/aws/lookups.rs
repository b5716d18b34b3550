//! What was looked up for each node class: good for a while, and as long as the class asks the same.

use std::future::Future;
use std::time::Duration;

use karp_aws::Error;
use moka::sync::Cache;

/// Node classes of one cluster; beyond it the oldest are looked up more often.
const CAPACITY: u64 = 1_000;

/// Remembers the answer to each class's last question.
pub struct Lookups<Q, A> {
    answers: Cache<String, (Q, A)>,
}

impl<Q, A> Lookups<Q, A>
where
    Q: PartialEq + Clone + Send + Sync + 'static,
    A: Clone + Send + Sync + 'static,
{
    /// Makes an empty memory whose answers are good for nearly `lifetime`, so that they have ended when the class is looked at again
    /// after that time.
    pub fn new(lifetime: Duration) -> Self {
        Self { answers: Cache::builder().max_capacity(CAPACITY).time_to_live(lifetime.mul_f64(0.9)).build() }
    }

    /// Returns the remembered answer to the same question, or asks. An answer that is not `whole` is not remembered: whoever waits
    /// for the missing thing waits no longer than for the next look.
    pub async fn get<F>(
        &self,
        class: &str,
        question: &Q,
        whole: impl FnOnce(&A) -> bool,
        ask: impl FnOnce() -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<A, Error>>,
    {
        if let Some(answer) = self.known(class, question) {
            return Ok(answer);
        }
        let answer = ask().await?;
        if whole(&answer) {
            self.note(class, question, answer.clone());
        }
        Ok(answer)
    }

    /// Returns the remembered answer to the same question.
    pub fn known(&self, class: &str, question: &Q) -> Option<A> {
        self.answers.get(class).filter(|(asked, _)| asked == question).map(|(_, answer)| answer)
    }

    /// Remembers an answer.
    pub fn note(&self, class: &str, question: &Q, answer: A) {
        self.answers.insert(class.to_owned(), (question.clone(), answer));
    }

    /// Forgets a class.
    pub fn forget(&self, class: &str) {
        self.answers.invalidate(class);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn only_whole_answers_to_the_same_question_are_remembered() {
        let lookups: Lookups<u8, Vec<u8>> = Lookups::new(Duration::from_secs(60));
        let calls = Cell::new(0);
        let ask = |class: &'static str, question: u8, answer: Vec<u8>| {
            let (lookups, calls) = (&lookups, &calls);
            async move {
                let asked = || async move {
                    calls.set(calls.get() + 1);
                    Ok(answer)
                };
                lookups.get(class, &question, |found| !found.is_empty(), asked).await.expect("answered")
            }
        };
        assert!(ask("a", 1, vec![]).await.is_empty());
        assert_eq!(ask("a", 1, vec![7]).await, [7], "nothing was found the first time: asked again");
        assert_eq!(ask("a", 1, vec![8]).await, [7]);
        assert_eq!(ask("a", 2, vec![9]).await, [9], "another question");
        assert_eq!(ask("b", 2, vec![5]).await, [5], "another class");
        lookups.forget("a");
        assert_eq!(ask("a", 2, vec![6]).await, [6]);
        assert_eq!(calls.get(), 5);
        lookups.note("b", &3, vec![4]);
        assert_eq!(["a", "b", "c"].map(|class| lookups.known(class, &3)), [None, Some(vec![4]), None]);
        assert_eq!(lookups.known("b", &2), None);
    }
}
