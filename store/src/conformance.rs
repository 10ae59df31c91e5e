//! The promises of every store: one list, run by each backend with one line.
//!
//! ```text
//! everturn_store::conformance!(make);   // `make()` returns something that derefs to a fresh, empty store
//! ```
//!
//! Each promise is a function that panics with what is wrong, and becomes one test. A behaviour that is not in
//! this list is not promised. Nothing here reads a clock or generates random ids: [`Maker`] counts, so failures
//! are reproducible.

mod assets;
mod backup;
mod erasing;
mod facts;
mod forks;
mod isolation;
mod keys;
mod maker;
#[cfg(feature = "postgres")]
mod postgres;
mod reading;
mod recall;
mod removing;
mod restoring;
mod streams;
mod tenants;
mod vectors;
mod views;
mod writing;

pub use assets::*;
pub use backup::*;
pub use erasing::*;
pub use facts::*;
pub use forks::*;
pub use isolation::*;
pub use keys::*;
pub use maker::*;
#[cfg(feature = "postgres")]
pub use postgres::*;
pub use reading::*;
pub use recall::*;
pub use removing::*;
pub use restoring::*;
pub use streams::*;
pub use tenants::*;
pub use vectors::*;
pub use views::*;
pub use writing::*;

use crate::{AccessKeys, Backup, CheckedIndex, CheckedLog, Index, Log, RecallStore};

/// Everything that the promises cover.
pub trait Backend: CheckedLog + CheckedIndex + AccessKeys + RecallStore + Backup {}

impl<T: Log + Index + AccessKeys + RecallStore + Backup> Backend for T {}

/// Makes one test of each promise, each with a store of its own. The argument is a function; what it returns
/// derefs to the store and may keep a folder alive beside it.
#[macro_export]
macro_rules! conformance {
    ($make:expr) => {
        $crate::conformance!(log |promise: fn(&dyn $crate::conformance::Backend)| promise(&*$make()));
        $crate::conformance!(recall |promise: fn(&dyn $crate::conformance::Backend)| promise(&*$make()));
    };
    // The promises of a part of the store, each passed to a function that makes a store for it, or reports that
    // there is none.
    (log $keep:expr) => {
        $crate::conformance!($keep;
            events_come_back_byte_for_byte
            erasing_reaches_checkpoints_of_forks_and_those_that_were_taken_back
            what_was_made_of_erased_words_is_not_written
            a_correction_goes_with_the_last_source_of_its_fact
            a_correction_goes_when_all_sources_of_its_fact_are_erased_at_once
            a_checkpoint_goes_with_the_event_that_took_it_over
            titles_and_imported_lines_that_repeat_a_turn_are_found
            events_of_any_kind_can_be_erased
            what_an_actor_wrote_is_found_wherever_it_can_be_read
            a_batch_is_answered_in_order_and_each_request_sees_the_ones_before
            batches_are_carried_out_in_the_order_in_which_they_were_begun
            a_refused_request_leaves_no_trace_and_does_not_disturb_the_others
            seq_is_dense_whatever_the_clocks_say
            updated_never_goes_back
            stale_expected_seq_is_a_conflict_that_names_the_head
            an_append_that_was_prepared_for_what_has_changed_is_refused
            a_repeated_key_gives_the_first_answer_and_writes_nothing
            a_key_reused_for_another_body_is_a_conflict
            a_key_still_works_after_its_first_event_was_erased
            a_repeated_creation_gives_the_first_conversation
            a_request_that_may_only_repeat_writes_nothing_new
            creating_what_exists_is_a_conflict
            an_empty_append_is_refused
            of_two_resolutions_the_first_wins
            a_store_that_takes_commits_is_ready
            a_batch_above_the_limit_is_refused_with_both_numbers
            unknown_kinds_are_stored_and_served
            an_event_about_an_absent_turn_is_refused
            a_conversation_that_is_not_active_takes_no_turns
            another_tenant_sees_nothing
            another_tenant_can_change_nothing
            the_same_id_lives_apart_in_two_tenants
            every_tenant_is_listed_once
            events_are_read_in_pages
            pages_end_when_their_bytes_do
            what_a_tenant_stores_is_counted
            history_pages_join_to_the_whole
            history_leaves_out_what_is_superseded_unless_asked
            an_edit_keeps_its_place
            an_edit_between_two_pages_repeats_nothing
            a_fork_keeps_its_own_places
            an_edit_of_what_a_view_leaves_out_does_not_count
            a_turn_is_superseded_once
            settings_fold_into_the_conversation
            participants_are_those_who_spoke
            conversations_are_listed_latest_first
            a_conversation_knows_when_it_was_said
            listing_filters_by_project
            listing_filters_by_agent
            listing_filters_by_title_and_state
            forks_are_listed_by_their_parent
            ids_are_found_by_their_beginning
            expired_lists_exactly_what_is_due
            an_open_turn_collects_text_until_it_is_committed
            an_aborted_turn_keeps_what_was_said_and_is_superseded_by_the_abort
            an_interrupted_turn_stays_in_the_history
            a_turn_ends_once
            a_repeated_chunk_changes_nothing
            open_turns_are_listed_over_all_tenants
            a_fork_inherits_history_without_copying_it
            both_sides_of_a_fork_go_on_alone
            a_fork_does_not_see_what_its_parent_superseded_later
            a_turn_that_was_aborted_at_a_fork_is_aborted_there_for_ever
            an_open_turn_is_not_erased
            what_is_in_use_again_is_not_deleted_as_expired
            a_file_cannot_say_a_turn_twice
            a_made_up_parent_is_no_parent
            settling_changes_no_answer
            an_open_turn_reads_as_interrupted_in_a_fork_and_goes_on_in_the_parent
            a_fork_of_a_fork_reads_through_both
            a_fork_needs_a_place_that_exists
            forks_are_as_deep_as_the_limit_says
            a_turn_is_found_where_it_was_said
            a_deleted_parent_keeps_its_children_readable_until_the_last_is_gone
            a_new_conversation_under_a_deleted_parents_id_leaves_its_children_alone
            erasing_keeps_the_envelope_and_records_it
            erasing_an_absent_turn_erases_nothing
            erasing_in_a_fork_leaves_the_parents_later_turns_alone
            erasing_releases_assets_that_only_the_erased_turns_showed
            bytes_that_another_asset_shares_are_not_released
            an_asset_that_a_fork_still_shows_is_not_released
            deleting_leaves_one_tombstone
            deleting_releases_assets
            deleting_in_one_tenant_leaves_the_keys_of_another
            restoring_into_an_empty_store_gives_the_same_chain
            restoring_again_adds_nothing_and_a_longer_file_adds_the_rest
            a_file_that_diverges_is_a_conflict
            a_broken_link_is_corrupt
            a_deleted_conversation_can_be_restored
            a_fork_is_restored_onto_its_parent
            rebuilding_gives_the_same_answers
            turns_are_read_as_they_stood_then
            kept_folds_are_found_and_are_never_the_only_copy
            a_fold_that_is_kept_at_once_miscounts_nothing
            an_asset_is_found_by_its_id
            an_asset_is_found_by_its_id_alone
            a_fact_is_found_by_its_id_alone
            what_was_learned_from_a_turn_is_erased_with_it_wherever_it_was_stated
            turns_that_fell_are_counted
            erasing_takes_the_bodies_of_other_events_along
            of_two_compactions_one_wins_and_one_can_be_taken_back
            what_goes_over_the_budget_is_refused
            a_budget_refuses_nothing_by_default
            a_key_comes_back_as_it_was_kept
            keys_are_listed_by_their_tenant_only
            a_key_is_revoked_once_and_by_its_tenant_only
            the_last_use_of_a_key_never_goes_back
            a_store_knows_whether_any_key_is_valid
            every_conversation_is_a_member_with_its_own_events
            a_deleted_parent_is_a_member_with_what_its_forks_need
            what_a_backup_reads_gives_the_same_answers_elsewhere
            erased_bodies_are_listed_wherever_they_were
            a_restored_request_is_answered_and_not_repeated
            keys_of_all_tenants_are_read_at_once
        );
    };
    (recall $keep:expr) => {
        $crate::conformance!($keep;
            what_was_said_is_found_by_its_words
            a_turn_has_neighbours
            what_fits_best_comes_first
            recall_is_narrowed_by_filters
            recall_is_limited_to_conversations
            recall_stays_in_its_conversation_and_its_tenant
            what_one_tenant_stores_changes_no_answer_of_another
            a_fork_finds_what_it_inherited
            what_forks_inherit_from_a_deleted_parent_is_found_under_them
            what_does_not_stand_is_found_only_if_asked_for
            an_open_turn_is_found_when_it_is_said
            what_is_gone_is_not_found
            facts_are_found_beside_turns
            private_entries_are_found_by_their_audience_alone
            an_index_catches_up_where_it_stopped
            an_index_made_again_finds_the_same
            what_is_nearest_in_meaning_comes_first
            entries_wait_for_their_vectors_newest_first
            what_was_said_gets_its_vector_before_what_tools_did
            a_vector_may_come_with_its_entry
            vectors_of_different_models_are_never_compared
            what_is_gone_is_near_nothing
            a_fork_is_near_what_it_inherited
            the_ten_nearest_of_many_are_found
        );
    };
    // Promises of a place of assets, which need not belong to a backend.
    (assets $keep:expr) => {
        $crate::conformance!($keep;
            bytes_of_assets_come_back
            a_range_of_an_asset_ends_with_its_bytes
            damaged_bytes_are_noticed_and_replaced
            deleted_bytes_are_gone
            all_bytes_are_listed
        );
    };
    ($keep:expr; $($promise:ident)*) => {
        $(
            #[test]
            fn $promise() {
                let keep = $keep;
                keep($crate::conformance::$promise);
            }
        )*
    };
}
