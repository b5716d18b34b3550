//! Each resource of the schema has its acceptance tests under real OpenTofu (`provider/tests`): walked, so that none is forgotten of a new
//! resource.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// What a test tells of which resources: it comes and goes (`life`), is made again when others deleted it (`vanishes`), is put right when they
/// edited it (`heals`), changes or gives way (`changes`), is imported without a change (`import`), its tags change (`tags`), a state of an older
/// version is taken (`upgrade`), and whatever is made of it when the provider's process dies is not lost (`killed`).
const TOLD: &str = "
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role discovery_tags
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_pod_execution_role fargate_profile instance_profile
life      aws_resources/life         all_resources_come_from_nothing_change_and_go                interruption_queue node_role oidc_provider
life      aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
life      aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
life      aws_resources/teardown     nothing_is_left_although_no_controller_runs                  teardown
life      kubernetes_resources/main  all_of_it_comes_in_one_apply_and_goes_in_one_destroy         controller crds node_class node_pool
life      kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
life      kubernetes_resources/entries an_entry_of_aws_auth_leaves_those_of_others                aws_auth_entry
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       access_entry controller_role discovery_tags
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       fargate_pod_execution_role fargate_profile instance_profile
vanishes  aws_resources/holes        each_resource_comes_back_and_gives_way                       interruption_queue node_role
vanishes  aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
vanishes  aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
vanishes  aws_resources/vanished     an_identity_provider_that_somebody_deleted_comes_back        oidc_provider
vanishes  kubernetes_resources/vanished what_was_deleted_is_made_again                            controller node_class node_pool
vanishes  kubernetes_resources/vanished definitions_that_somebody_deleted_come_back_and_are_imported crds
vanishes  kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
vanishes  kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way access_entry controller_role discovery_tags
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way fargate_pod_execution_role fargate_profile
heals     aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way instance_profile oidc_provider
heals     aws_resources/life         drift_is_seen_and_healed_and_foreign_things_stay             interruption_queue node_role
heals     aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
heals     aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
heals     kubernetes_resources/main  a_change_of_others_shows_and_their_fields_are_not_taken      node_pool
heals     kubernetes_resources/controller where_it_runs_comes_changes_heals_and_goes              controller
heals     kubernetes_resources/crds  an_edit_by_hand_shows_and_is_put_right_when_asked            crds
heals     kubernetes_resources/edited what_others_edit_heals_what_changes_stays_and_another_name_gives_way node_class node_overlay
heals     kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
changes   aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way controller_policy discovery_tags instance_profile
changes   aws_resources/edited       what_others_edit_heals_what_changes_stays_and_what_cannot_gives_way oidc_provider pod_identity_association
changes   aws_resources/edited       a_teardown_gives_way_for_another_cluster                     teardown
changes   aws_resources/entered      an_entry_is_of_a_role_that_the_same_apply_makes              aws_auth_entry node_role
changes   kubernetes_resources/edited what_others_edit_heals_what_changes_stays_and_another_name_gives_way node_class node_overlay
changes   kubernetes_resources/edited a_pool_is_planned_before_all_of_it_is_known                 node_pool
changes   kubernetes_resources/edited a_controller_moves_to_another_namespace_whichever_goes_first controller
changes   aws_resources/holes        each_resource_comes_back_and_gives_way                       access_entry controller_role discovery_tags
changes   aws_resources/holes        each_resource_comes_back_and_gives_way                       fargate_pod_execution_role fargate_profile instance_profile
changes   aws_resources/holes        each_resource_comes_back_and_gives_way                       interruption_queue node_role
changes   aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
changes   aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
changes   aws_resources/vanished     an_identity_provider_that_somebody_deleted_comes_back        oidc_provider
changes   aws_resources/vanished     a_teardown_changes_in_place_and_gives_way_for_another_cluster teardown
changes   kubernetes_resources/main  a_change_of_others_shows_and_their_fields_are_not_taken      node_pool
changes   kubernetes_resources/controller one_that_does_not_start_is_told_of_and_stays            controller
changes   aws_resources/queue        statements_of_the_user_come_change_heal_and_go               interruption_queue
changes   kubernetes_resources/controller where_it_runs_comes_changes_heals_and_goes              controller
changes   kubernetes_resources/crds  definitions_stay_while_objects_live                          crds
changes   kubernetes_resources/entries settings_of_the_kubelet_that_have_no_attribute_are_kept_and_imported node_class
changes   kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
changes   kubernetes_resources/entries an_entry_of_aws_auth_leaves_those_of_others                aws_auth_entry
import    aws_resources/holes        each_resource_is_imported_without_a_change                   access_entry controller_role discovery_tags
import    aws_resources/holes        each_resource_is_imported_without_a_change                   fargate_pod_execution_role fargate_profile instance_profile
import    aws_resources/holes        each_resource_is_imported_without_a_change                   interruption_queue node_role oidc_provider teardown
import    aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
import    aws_resources/account      the_spot_role_is_made_once_and_deleted_only_by_its_maker     spot_service_linked_role
import    kubernetes_resources/main  a_pool_made_elsewhere_is_imported_without_a_difference       node_pool
import    kubernetes_resources/controller one_that_is_in_no_state_is_imported                     controller
import    kubernetes_resources/entries settings_of_the_kubelet_that_have_no_attribute_are_kept_and_imported node_class
import    kubernetes_resources/entries an_overlay_comes_changes_returns_and_is_imported           node_overlay
import    kubernetes_resources/vanished definitions_that_somebody_deleted_come_back_and_are_imported crds
import    kubernetes_resources/vanished an_entry_of_aws_auth_that_somebody_took_out_or_edited_comes_back aws_auth_entry
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                access_entry controller_role
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                fargate_pod_execution_role fargate_profile instance_profile
tags      aws_resources/life         all_resources_come_from_nothing_change_and_go                interruption_queue node_role oidc_provider
tags      aws_resources/account      an_association_comes_changes_heals_and_goes                  pod_identity_association
life      aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
vanishes  aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
changes   aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
import    aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
tags      aws_resources/policies     the_policy_is_kept_for_a_role_of_others                      controller_policy
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  access_entry controller_role discovery_tags controller_policy
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  fargate_pod_execution_role fargate_profile instance_profile
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  interruption_queue node_role oidc_provider
upgrade   aws_resources/upgraded     a_state_of_an_older_version_needs_no_change                  pod_identity_association spot_service_linked_role teardown
upgrade   kubernetes_resources/upgraded a_state_of_an_older_version_needs_no_change               aws_auth_entry controller crds node_class node_overlay node_pool
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      access_entry controller_policy controller_role discovery_tags
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      fargate_pod_execution_role fargate_profile instance_profile
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      interruption_queue node_role oidc_provider
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      pod_identity_association spot_service_linked_role
killed    aws_resources/killed       a_provider_that_is_killed_loses_nothing                      aws_auth_entry controller crds node_class node_overlay node_pool
";
/// What a resource need not show, and why.
const EXEMPT: [(&str, &str, &str); 4] = [
    ("vanishes", "teardown", "it stands for nothing that others could delete"),
    ("heals", "teardown", "it stands for nothing that others could edit"),
    (
        "killed",
        "teardown",
        "it makes nothing, and what stops it while it ends things is told in `kubernetes_resources/stopped`",
    ),
    ("heals", "spot_service_linked_role", "AWS lets nobody edit what it made for a service"),
];

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the table, each row of it true: there is such a test, and its configuration speaks of the resource.
fn told() -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for row in TOLD.lines().filter(|line| !line.is_empty()) {
        let mut cells = row.split_whitespace();
        let [story, file, test] = [(); 3].map(|()| cells.next().unwrap());
        let text = source(&format!("{file}.rs"));
        let begin = text.find(&format!("fn {test}()")).unwrap_or_else(|| panic!("{file}.rs has no test {test}"));
        let before = text[..begin].lines().rev().take(2).collect::<String>();
        assert!(before.contains("test]"), "{file}.rs: {test} is no test");
        // Configurations that several tests share.
        let folder = file.split('/').next().unwrap();
        let shared = if folder == "aws_resources" { "life" } else { "main" };
        let speaks = text + &source(&format!("{folder}/{shared}.rs"));
        for kind in cells {
            assert!(speaks.contains(&format!("\"karp_{kind}")), "{file}.rs does not speak of karp_{kind}");
            all.insert((story.to_owned(), kind.to_owned()));
        }
    }
    all
}

#[test]
fn each_resource_is_tested_in_all_that_it_must_bear() {
    let mut told = told();
    let mut missing = Vec::new();
    for resource in crate::resources::all(&Arc::default()) {
        let kind = resource.type_name().trim_start_matches("karp_").to_owned();
        let has_tags = resource.schema().attributes.contains_key("tags_all");
        let stories = ["life", "vanishes", "heals", "changes", "import", "upgrade", "killed"]
            .into_iter()
            .chain(has_tags.then_some("tags"));
        for story in stories {
            let exempt = EXEMPT.iter().any(|(exempt, of, _)| *exempt == story && *of == kind);
            let is_told = told.remove(&(story.to_owned(), kind.clone()));
            assert!(!(exempt && is_told), "{kind} shows {story} by now: take the exemption away");
            if !exempt && !is_told {
                missing.push(format!("karp_{kind}: {story}"));
            }
        }
    }
    assert!(missing.is_empty(), "write tests, and name them in the table: {missing:#?}");
    assert!(told.is_empty(), "there is no such resource, or it has no tags: {told:?}");
}
