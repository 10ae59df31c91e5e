//! Similarity of the words of a text to those of a query, each to the nearest: "car" to "vehicle", where the vectors
//! of whole texts blur.

use super::table::DIMENSIONS;
use super::{ENCODER, Encoder, PARTS_SHARE_MAX};

/// Tokens compared at a time: of a long text, the closest stretch counts. Otherwise a long one would have something
/// close to any word.
const STRETCH_TOKENS: usize = 64;
/// Most tokens of a text that are read.
const TOKENS_MAX: usize = 1024;

/// A query, and the similarity of each token met so far to each of its own.
pub struct Closeness {
    question: Vec<QueryToken>,
    /// By token, one more than its index in `met`; 0 if it was not met yet.
    places: Vec<u32>,
    /// Similarity of each token met so far to each token of the query.
    met: Vec<f32>,
}

/// A token of a query.
struct QueryToken {
    direction: [f32; DIMENSIONS],
    /// Its share of the query. A rare word has a longer vector than a common one.
    weight: f32,
}

impl Closeness {
    /// `None` for a query that means nothing to the table, or is in a language that it does not know.
    pub fn to(question: &str) -> Option<Closeness> {
        let encoder: &Encoder = &ENCODER;
        if !encoder.knows_language(question) || encoder.parts_share(question) > PARTS_SHARE_MAX {
            return None;
        }
        let mut tokens = Vec::new();
        encoder.words.tokens(question, |token| tokens.push(token));
        tokens.sort_unstable();
        tokens.dedup();
        let mut asked: Vec<QueryToken> = Vec::new();
        for token in tokens {
            let mut direction = [0.0; DIMENSIONS];
            encoder.table.add(token, &mut direction);
            let weight = direction.iter().map(|number| number * number).sum::<f32>();
            if weight > 0.0 {
                direction.iter_mut().for_each(|number| *number /= weight.sqrt());
                asked.push(QueryToken { direction, weight });
            }
        }
        let total: f32 = asked.iter().map(|asked| asked.weight).sum();
        asked.iter_mut().for_each(|asked| asked.weight /= total);
        let places = vec![0; encoder.table.len()];
        (!asked.is_empty()).then_some(Closeness { question: asked, places, met: Vec::new() })
    }

    /// From 0 to 1, where 1 means that every word of the query is there.
    pub fn of(&mut self, text: &str) -> f64 {
        let mut tokens = Vec::new();
        ENCODER.words.tokens(text, |token| {
            if tokens.len() < TOKENS_MAX {
                tokens.push(token);
            }
        });
        let met: Vec<usize> = tokens.into_iter().map(|token| self.meet(token)).collect();
        let step = STRETCH_TOKENS / 2;
        let mut closest = 0.0_f32;
        for start in (0..met.len()).step_by(step) {
            let stretch = &met[start..met.len().min(start + STRETCH_TOKENS)];
            closest = closest.max(self.of_stretch(stretch));
            if start + STRETCH_TOKENS >= met.len() {
                break;
            }
        }
        f64::from(closest)
    }

    fn of_stretch(&self, met: &[usize]) -> f32 {
        let mut nearest = vec![0.0_f32; self.question.len()];
        for start in met {
            let near = &self.met[*start..*start + nearest.len()];
            nearest.iter_mut().zip(near).for_each(|(nearest, near)| *nearest = nearest.max(*near));
        }
        nearest.iter().zip(&self.question).map(|(nearest, asked)| nearest * asked.weight).sum()
    }

    /// Index in `met` at which the numbers of a token begin.
    fn meet(&mut self, token: u16) -> usize {
        let place = &mut self.places[usize::from(token)];
        if *place == 0 {
            *place = (self.met.len() / self.question.len()) as u32 + 1;
            let (_, bytes) = ENCODER.table.row(token);
            let mut numbers = [0.0_f32; DIMENSIONS];
            numbers.iter_mut().zip(bytes).for_each(|(number, byte)| *number = f32::from(*byte as i8));
            let length = dot(&numbers, &numbers).sqrt().max(f32::MIN_POSITIVE);
            self.met.extend(self.question.iter().map(|asked| dot(&asked.direction, &numbers) / length));
        }
        (*place as usize - 1) * self.question.len()
    }
}

/// Eight sums side by side, since the compiler must not reorder additions of floats by itself.
fn dot(a: &[f32; DIMENSIONS], b: &[f32; DIMENSIONS]) -> f32 {
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closeness(question: &str, text: &str) -> f64 {
        Closeness::to(question).map_or(0.0, |mut question| question.of(text))
    }

    #[test]
    fn near_words_come_closer_than_others() {
        let question = "which vehicle was stolen?";
        let (near, far) =
            (closeness(question, "the car was taken"), closeness(question, "we had soup for lunch"));
        assert!(near > far + 0.1, "{near} {far}");
        assert!((closeness("stolen vehicle", "a vehicle that was stolen") - 1.0).abs() < 1e-3);
        assert_eq!(closeness(question, ""), 0.0);
    }

    #[test]
    fn a_long_text_counts_by_its_closest_stretch() {
        let filler = "we had soup and bread for lunch today ".repeat(20);
        let apart = closeness("stolen vehicle", &format!("a vehicle came {filler} and was stolen"));
        let together = closeness("stolen vehicle", &format!("{filler} a stolen vehicle {filler}"));
        assert!(together > 0.99 && apart < 0.9, "{together} {apart}");
    }

    #[test]
    fn what_is_not_english_is_not_compared() {
        for question in [
            "Wann fährt der Zug nach München ab?",
            "我们为订单选择了哪个数据库？",
            "xqzzt blorf wibblenix",
            "",
        ] {
            assert!(Closeness::to(question).is_none(), "{question}");
        }
        assert!(Closeness::to("when does the train leave?").is_some());
    }
}
