//! The launch templates in use: made when a launch first needs them, deleted when none has for long.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use karp_aws::launch_template::{self, Spec, Template};
use karp_aws::{Clients, Error, Retry};

/// How long a template that was seen is taken to be there; one that was deleted meanwhile is made again after one failed launch.
pub(super) const TRUST: Duration = Duration::from_secs(300);
/// How long a known template is used without another look when EC2 could not say whether it is there.
const RESPITE: Duration = Duration::from_secs(30);
/// A template that no launch has used for this long is deleted: its image, user data or tags are history. Far longer than any launch takes.
pub(super) const IDLE: Duration = Duration::from_secs(3600);
/// How often each class's templates are listed for that.
const INTERVAL: Duration = Duration::from_secs(600);

/// Remembers templates by name.
#[derive(Default)]
pub struct Templates {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    templates: HashMap<String, Seen>,
    /// When each class's templates were last listed.
    listed: HashMap<String, Instant>,
}

struct Seen {
    /// When a launch last named it, or when this process first saw it.
    used: Instant,
    /// Until when it is taken to be there, since EC2 said so; nothing when a launch found that it is not.
    trusted: Option<Instant>,
}

impl Seen {
    fn at(now: Instant) -> Self {
        Self { used: now, trusted: Some(now + TRUST) }
    }
}

impl Templates {
    /// Returns the name of the template of `spec`, made when it is not there. One that is known is used though EC2 cannot say whether it is still
    /// there: the launch will tell.
    ///
    /// # Errors
    /// Any failure of the calls.
    pub async fn name(&self, clients: &Clients, spec: &Spec) -> Result<String, Error> {
        let name = spec.name();
        if self.is_there(&name, Instant::now()) {
            return Ok(name);
        }
        match launch_template::look(clients, spec).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                launch_template::make(clients, spec).await?;
            }
            Err(error) if matches!(error.retry(), Retry::After(_)) && self.spare(&name, Instant::now()) => {
                tracing::warn!(%error, name, "launch template could not be looked up: it is taken to be there");
                return Ok(name);
            }
            Err(error) => return Err(error),
        }
        self.locked().templates.insert(name.clone(), Seen::at(Instant::now()));
        Ok(name)
    }

    /// Looks again before the templates are used the next time.
    pub fn doubt<'a>(&self, names: impl Iterator<Item = &'a String>) {
        let mut memory = self.locked();
        for name in names {
            if let Some(seen) = memory.templates.get_mut(name) {
                seen.trusted = None;
            }
        }
    }

    /// Forgets a class, whose templates were all deleted.
    pub fn forget(&self, class: &str) {
        let mut memory = self.locked();
        memory.listed.remove(class);
        for seen in memory.templates.values_mut() {
            seen.trusted = None;
        }
    }

    /// Deletes the templates of a class that no launch has used for long; most calls only see that it is too early to look.
    pub async fn collect(&self, clients: &Clients, class: &str, ownership: &BTreeMap<String, String>) {
        if !self.is_time(class, Instant::now()) {
            return;
        }
        let idle = match launch_template::list(clients, ownership).await {
            Ok(templates) => self.idle(templates, Instant::now()),
            Err(error) => return tracing::warn!(%error, "launch templates could not be listed"),
        };
        for template in idle {
            match launch_template::delete(clients, &template.id).await {
                Ok(()) => tracing::info!(name = template.name, "deleted idle launch template"),
                Err(error) => tracing::warn!(%error, name = template.name, "idle launch template could not be deleted"),
            }
        }
    }

    fn is_there(&self, name: &str, now: Instant) -> bool {
        let mut memory = self.locked();
        let Some(seen) = memory.templates.get_mut(name) else { return false };
        seen.used = now;
        seen.trusted.is_some_and(|until| now < until)
    }

    /// Trusts a template that is known for a little longer; says whether it is known.
    fn spare(&self, name: &str, now: Instant) -> bool {
        let mut memory = self.locked();
        let Some(seen) = memory.templates.get_mut(name).filter(|seen| seen.trusted.is_some()) else { return false };
        seen.trusted = Some(now + RESPITE);
        true
    }

    fn is_time(&self, class: &str, now: Instant) -> bool {
        let mut memory = self.locked();
        let early = memory.listed.get(class).is_some_and(|before| now.saturating_duration_since(*before) < INTERVAL);
        if !early {
            memory.listed.insert(class.to_owned(), now);
        }
        !early
    }

    /// Picks the idle ones and forgets them; one that was never seen before begins its time now.
    fn idle(&self, templates: Vec<Template>, now: Instant) -> Vec<Template> {
        let mut memory = self.locked();
        let mut idle = Vec::new();
        for template in templates {
            let seen = memory.templates.entry(template.name.clone()).or_insert_with(|| Seen::at(now));
            if now.saturating_duration_since(seen.used) >= IDLE {
                memory.templates.remove(&template.name);
                idle.push(template);
            }
        }
        idle
    }

    /// Lets all that is known be older.
    #[cfg(test)]
    pub fn age(&self, by: Duration) {
        let mut memory = self.locked();
        let earlier = |at: Instant| at.checked_sub(by).expect("the machine runs for longer");
        for seen in memory.templates.values_mut() {
            seen.used = earlier(seen.used);
            seen.trusted = seen.trusted.map(earlier);
        }
        memory.listed.clear();
    }

    fn locked(&self) -> MutexGuard<'_, Memory> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str) -> Template {
        Template { id: format!("lt-{name}"), name: name.to_owned(), tags: BTreeMap::new(), created_at: None }
    }

    #[test]
    fn only_templates_without_a_launch_for_long_are_collected() {
        let templates = Templates::default();
        let start = Instant::now();
        let both = || vec![template("used"), template("idle")];
        assert!(templates.idle(both(), start).is_empty(), "their time begins when they are first seen");
        let later = start + IDLE;
        assert!(!templates.is_there("used", later), "a launch names it: known so long ago that it is looked up again");
        let idle = templates.idle(both(), later);
        assert_eq!(idle.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["idle"]);
    }

    #[test]
    fn a_template_is_trusted_for_a_while_and_doubted_at_once() {
        let templates = Templates::default();
        let start = Instant::now();
        templates.idle(vec![template("one")], start);
        assert!(templates.is_there("one", start + TRUST / 2));
        assert!(!templates.is_there("one", start + TRUST));
        let late = start + TRUST * 2;
        assert!(
            templates.spare("one", late) && templates.is_there("one", late),
            "EC2 could not say: used as it is known"
        );
        assert!(!templates.is_there("one", late + RESPITE));
        templates.doubt([&"one".to_owned()].into_iter());
        assert!(!templates.is_there("one", start));
        assert!(!templates.spare("one", start) && !templates.spare("two", start), "a launch did not find it; unknown");
    }

    #[test]
    fn each_class_is_listed_once_an_interval() {
        let templates = Templates::default();
        let start = Instant::now();
        assert!(templates.is_time("a", start) && templates.is_time("b", start));
        assert!(!templates.is_time("a", start + INTERVAL / 2));
        assert!(templates.is_time("a", start + INTERVAL));
    }
}
