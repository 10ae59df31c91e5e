//! Languages that recall distinguishes: their commonest words and their stemmers.
//!
//! A language is recognised by words that nearly every sentence has. In a query, the same words carry little
//! weight.

use super::terms::Terms;
use rust_stemmers::{Algorithm, Stemmer};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Maximum number of words examined to recognise a language.
const WORDS_READ: usize = 200;
/// With fewer common words, a text may be in any language.
const COMMON_WORDS_MIN: u32 = 2;
/// Shorter words have no endings to remove.
const STEMMED_CHARS_MIN: usize = 3;

/// A language with a stemmer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "they are their names")]
pub enum Language {
    English,
    German,
    Spanish,
    French,
    Italian,
    Portuguese,
    Dutch,
    Russian,
}

/// Languages with words that nearly every text has, without accents; English first, since it wins ties.
const LANGUAGES: [(Language, &str); 8] = [
    (
        Language::English,
        "a about after an and any are as at be been before but by can could did do does for from had has have he her his how i \
         if in into is it its me may my not of on or our s she should so some t than that the their them then there these they \
         this to us was we were what when where which who whose why will with would you your",
    ),
    (
        Language::German,
        "aber als am an auch auf aus bei bis da damit das dass dem den der des die du ein eine einem einen einer er es fur \
         haben hat ich ihr im in ist ja kann man mehr mit nach nicht noch nur oder sein seit sich sie sind so uber um und uns \
         vom von vor wann war waren warum was welche welcher welches wenn wer werden wie wieder wir wird wo wohin zu zum zur",
    ),
    (
        Language::Spanish,
        "al antes como con cual cuando de del desde despues donde el ella en era es esta este fue ha hay la las le les lo los \
         mas me mi muy no nos o para pero por porque puede que quien se ser si sin sobre son su sus te tiene tu un una y ya yo",
    ),
    (
        Language::French,
        "a au aux avec ce ces cette comme comment d dans de des dont du elle en est et etait ete eu il ils j je l la le les leur \
         lui ma mais me mes moi mon n ne nous on ont ou par pas plus pour pourquoi qu quand que quel quelle qui sa se ses si \
         son sont sur tu un une vous y",
    ),
    (
        Language::Italian,
        "a ad ai al alla anche che chi ci come con cosa cui da dal dalla dei del della di dove e ed era essere gli ha hai hanno \
         ho i il in io la le lei lo loro lui ma mi mia mio ne nel nella no non noi o per perche piu quale quando questo se si \
         sono su sul tra tu un una uno voi",
    ),
    (
        Language::Portuguese,
        "a ao aos as ate com como da das de depois do dos e ela ele em era essa esse esta este eu foi ha isso ja lhe mais mas me \
         meu minha muito na nao nas nem no nos o onde os ou para pela pelo por porque qual quando que quem se sem ser seu sua \
         tambem tem um uma voce",
    ),
    (
        Language::Dutch,
        "aan al als bij dan dat de der deze die dit door een en er geen had heb hebben heeft het hij hoe hun ik in is je kan maar \
         me meer met mijn naar niet nog nu of om ons onze ook op over te toch tot uit van veel voor waar waarom wanneer waren \
         was wat we welke werd wie wij wordt zal ze zich zij zijn zo zou",
    ),
    (
        Language::Russian,
        "а без бы был была были было быть в вам вас во вот все вы где да для до его ее если есть еще же за и из или им их к как \
         когда кто ли мне мы на не него нет но о об он она они от по почему при с со так там то только ты у уже что чтобы это я",
    ),
];

impl Language {
    /// Every language.
    pub fn all() -> impl Iterator<Item = Language> {
        LANGUAGES.into_iter().map(|(language, _)| language)
    }

    /// The language of a text, unless it has too few common words to tell.
    pub fn of(text: &Terms) -> Option<Language> {
        let mut common = [0; LANGUAGES.len()];
        for (word, _) in text.words.iter().take(WORDS_READ) {
            let languages = COMMON.get(word.as_str()).copied().unwrap_or(0);
            common.iter_mut().enumerate().for_each(|(at, count)| *count += languages >> at & 1);
        }
        let mut most = (COMMON_WORDS_MIN - 1, None);
        for (language, common) in Language::all().zip(common) {
            if common > most.0 {
                most = (common, Some(language));
            }
        }
        most.1
    }

    /// Whether nearly every text in this language has this word.
    pub fn is_common(self, word: &str) -> bool {
        COMMON.get(word).is_some_and(|languages| languages >> (self as usize) & 1 == 1)
    }

    /// A word without its endings; `None` if it has none.
    pub fn stem(self, word: &str) -> Option<String> {
        if word.chars().nth(STEMMED_CHARS_MIN).is_none() || word.chars().any(|c| !c.is_alphabetic()) {
            return None;
        }
        let stem = STEMMERS[self as usize].stem(word);
        (stem != word).then(|| stem.into_owned())
    }
}

/// Common words, each with a bit for each language in which it is common.
static COMMON: LazyLock<HashMap<&'static str, u32>> = LazyLock::new(|| {
    let mut common = HashMap::new();
    for (at, (_, words)) in LANGUAGES.iter().enumerate() {
        words.split_whitespace().for_each(|word| *common.entry(word).or_insert(0) |= 1 << at);
    }
    common
});

static STEMMERS: LazyLock<Vec<Stemmer>> = LazyLock::new(|| {
    let algorithm = |language| match language {
        Language::English => Algorithm::English,
        Language::German => Algorithm::German,
        Language::Spanish => Algorithm::Spanish,
        Language::French => Algorithm::French,
        Language::Italian => Algorithm::Italian,
        Language::Portuguese => Algorithm::Portuguese,
        Language::Dutch => Algorithm::Dutch,
        Language::Russian => Algorithm::Russian,
    };
    Language::all().map(|language| Stemmer::create(algorithm(language))).collect()
});

#[cfg(test)]
mod tests {
    use super::super::terms;
    use super::*;

    #[test]
    fn languages_are_told_by_their_common_words() {
        for (text, language) in [
            ("Who holds the lock of the writer?", Some(Language::English)),
            ("Wann fährt der Zug nach München ab?", Some(Language::German)),
            ("¿Qué base de datos elegimos para los pedidos?", Some(Language::Spanish)),
            ("Quelle base de données avons-nous choisie pour les commandes ?", Some(Language::French)),
            ("Quale database abbiamo scelto per gli ordini del negozio?", Some(Language::Italian)),
            ("Qual foi o banco de dados que escolhemos para os pedidos?", Some(Language::Portuguese)),
            ("Waarom hebben we voor deze database gekozen?", Some(Language::Dutch)),
            ("Почему мы выбрали эту базу для заказов?", Some(Language::Russian)),
            ("我们为订单选择了哪个数据库？", None),
            ("cargo build --release", None),
            ("", None),
        ] {
            assert_eq!(Language::of(&terms(text)), language, "{text}");
        }
    }

    #[test]
    fn stems_take_endings_off() {
        for (language, word, stem) in [
            (Language::English, "locking", Some("lock")),
            (Language::English, "lock", None),
            (Language::English, "e0716", None),
            (Language::German, "hauser", Some("haus")),
            (Language::German, "lieferungen", Some("liefer")),
            (Language::Spanish, "canciones", Some("cancion")),
            (Language::Spanish, "la", None),
        ] {
            assert_eq!(language.stem(word).as_deref(), stem, "{word}");
        }
    }
}
