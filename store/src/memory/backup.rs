//! Reading everything, across tenants.

use super::write::scope;
use super::{Kept, Memory, StoredConversation};
use crate::{Backup, EVENT_BYTES, ErasedPage, Member, absent_member};
use everturn_core::Error;
use everturn_core::access::AccessKey;
use everturn_core::event::Event;
use everturn_core::id::Key;
use everturn_core::write::AnsweredRequest;

impl Backup for Memory {
    fn members(&self) -> Result<Vec<Member>, Error> {
        let kept = self.kept();
        Ok(kept.entries.iter().enumerate().map(|(place, entry)| member(place, entry)).collect())
    }

    fn member(&self, no: u64) -> Result<Member, Error> {
        let kept = self.kept();
        let (place, entry) = kept.numbered(no)?;
        Ok(member(place, entry))
    }

    fn member_events(
        &self,
        no: u64,
        after: u64,
        through: u64,
        bytes_max: usize,
    ) -> Result<Vec<Event>, Error> {
        let kept = self.kept();
        let (_, entry) = kept.numbered(no)?;
        let asked = entry.events.iter().filter(|event| event.seq > after && event.seq <= through);
        let mut bytes = 0;
        let fits = |event: &&Event| {
            let fits = bytes == 0 || bytes < bytes_max;
            bytes += EVENT_BYTES + event.text().map_or(0, str::len);
            fits
        };
        Ok(asked.take_while(fits).cloned().collect())
    }

    fn requests(
        &self,
        no: u64,
        after: u64,
        through: u64,
        limit: usize,
    ) -> Result<Vec<AnsweredRequest>, Error> {
        let kept = self.kept();
        let (place, entry) = kept.numbered(no)?;
        let conversation = &entry.conversation;
        let key = Key { tenant: conversation.tenant.clone(), id: conversation.id };
        let creations = scope(&key, true);
        let own = kept.requests.iter().filter(|(_, request)| request.place == place);
        let asked = own.filter(|(_, request)| request.last_seq > after && request.last_seq <= through);
        let mut found: Vec<AnsweredRequest> = asked
            .map(|((scope, key), request)| AnsweredRequest {
                creation: *scope == creations,
                key: key.clone(),
                fingerprint: request.fingerprint,
                first_seq: request.first_seq,
                last_seq: request.last_seq,
            })
            .collect();
        found.sort_by(|a, b| (a.last_seq, &a.key).cmp(&(b.last_seq, &b.key)));
        if let Some(last) = found.get(limit.max(1) - 1).map(|request| request.last_seq) {
            found.retain(|request| request.last_seq <= last);
        }
        Ok(found)
    }

    fn erased(&self, from: u64) -> Result<ErasedPage, Error> {
        let kept = self.kept();
        let Some(entry) = kept.entries.get(from as usize) else { return Ok(ErasedPage::default()) };
        let erased = entry.events.iter().filter(|event| event.body.is_none());
        Ok(ErasedPage { erased: erased.map(|event| (from + 1, event.seq)).collect(), next: Some(from + 1) })
    }

    fn all_keys(&self) -> Result<Vec<AccessKey>, Error> {
        Ok(self.kept().keys.values().cloned().collect())
    }
}

impl Kept {
    fn numbered(&self, no: u64) -> Result<(usize, &StoredConversation), Error> {
        let place = usize::try_from(no).ok().and_then(|no| no.checked_sub(1));
        let found = place.and_then(|place| Some((place, self.entries.get(place)?)));
        found.ok_or_else(|| absent_member(no))
    }
}

fn member(place: usize, entry: &StoredConversation) -> Member {
    let conversation = &entry.conversation;
    let parent = entry.above.zip(conversation.parent);
    Member {
        no: place as u64 + 1,
        key: Key { tenant: conversation.tenant.clone(), id: conversation.id },
        created: conversation.created,
        parent: parent.map(|(above, parent)| (above as u64 + 1, parent.at_seq)),
        through: entry.events.last().map_or(0, |event| event.seq),
        hash: entry.deleted.is_none().then_some(conversation.head.hash),
        deleted: entry.deleted.clone(),
    }
}
