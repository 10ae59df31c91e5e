//! Turns and questions of `recall-quality`, written for it. Nothing here comes from real conversations.

/// A turn, and a question that means it with few of its words.
pub const PARAPHRASES: [(&str, &str); 64] = [
    (
        "The build broke because the certificate on the package mirror ran out last night.",
        "why did compilation stop working, something with an expired TLS thing?",
    ),
    (
        "I moved the nightly job to three in the morning so that it does not collide with the backup.",
        "when does the scheduled task run now and what did it interfere with?",
    ),
    (
        "Customers in Norway pay with a different card processor since spring.",
        "which payment provider handles Scandinavian buyers?",
    ),
    (
        "The map tiles load slowly when someone zooms out quickly on an old phone.",
        "performance complaint about the geographic view on mobile devices",
    ),
    (
        "Please write the release notes in plain words, nobody outside reads our jargon.",
        "tone wanted for the changelog text",
    ),
    (
        "Our intern found that the thermostat reports Fahrenheit while the dashboard assumes Celsius.",
        "mismatch of temperature units",
    ),
    (
        "The test is flaky because two of them bind the same port at once.",
        "intermittent failures caused by a clash over a socket",
    ),
    (
        "Anna takes over on-call from Tuesday while Joris is on parental leave.",
        "who is responsible for incidents during the colleague's absence?",
    ),
    (
        "We throw away thumbnails after ninety days, the originals stay forever.",
        "how long are preview pictures retained?",
    ),
    (
        "The spreadsheet import drops rows whose date has a two-digit year.",
        "bug with short year numbers when loading Excel data",
    ),
    (
        "Memory of the worker doubles every hour until the kernel kills it.",
        "leak that ends with the process being terminated by the operating system",
    ),
    (
        "The legal team wants the consent box unticked by default.",
        "requirement from lawyers regarding opt-in",
    ),
    (
        "Half of the emails to Outlook addresses land in spam since we changed the sender domain.",
        "deliverability problem with Microsoft mail accounts",
    ),
    (
        "I translated the onboarding into Portuguese, but the buttons overflow their boxes.",
        "layout issue in a localized welcome flow",
    ),
    (
        "The drone's battery readings jump because the sensor shares a ground with the motor.",
        "electrical noise disturbing the voltage measurement of the aircraft",
    ),
    (
        "Sales promised the hospital that data never leaves the building.",
        "on-premises commitment made to a medical client",
    ),
    (
        "The garbage truck route planner ignores one-way streets near the harbour.",
        "navigation software for waste collection directs vehicles against traffic",
    ),
    (
        "After the update the fingerprint reader wakes up too late to unlock the laptop.",
        "biometric login delayed since the patch",
    ),
    (
        "The museum wants visitors to point their camera at a painting and hear about it.",
        "audio guide triggered by image recognition of artworks",
    ),
    (
        "We doubled the batch size and the training diverged after the second epoch.",
        "learning became unstable with larger minibatches",
    ),
    (
        "Nobody can reproduce the crash on a machine with less than sixteen cores.",
        "failure visible only on computers with many processors",
    ),
    (
        "The bakery's till prints the wrong tax on gluten free bread.",
        "incorrect VAT on receipts for special loaves",
    ),
    (
        "Please stop sending me a message for every comment, once a day is enough.",
        "user prefers a daily digest of notifications",
    ),
    (
        "The satellite pass lasts eight minutes, so the upload must resume where it ended.",
        "transfers have to survive short windows of connectivity to orbit",
    ),
    (
        "He types with one hand, so every shortcut must work without holding two keys.",
        "accessibility need regarding key combinations",
    ),
    (
        "The choir's recording is a quarter tone flat compared with the organ.",
        "singers out of tune relative to the instrument",
    ),
    (
        "We pay twice for storage because old snapshots are never pruned.",
        "cloud bill inflated by backups that nobody deletes",
    ),
    (
        "The lift controller forgets which floors were requested after a brownout.",
        "elevator loses its queue when the voltage dips",
    ),
    (
        "Her thesis needs every figure in greyscale because the printer has no colour.",
        "pictures must be black and white for the dissertation",
    ),
    ("The chatbot apologises in every sentence; people find it tiring.", "assistant says sorry too often"),
    (
        "Queries over the archive take a minute since the planner stopped using the partial index.",
        "slow historical searches after a change in execution strategy",
    ),
    (
        "The greenhouse fans start when the sun shines on the sensor, not when it is warm.",
        "ventilation triggered wrongly by direct light on the probe",
    ),
    (
        "Passwords were in the crash dump, so we rotate all of them tonight.",
        "credentials leaked through a core file and have to be changed",
    ),
    (
        "The ferry timetable shows winter times to people whose phone is set to another zone.",
        "boat departures displayed wrongly abroad",
    ),
    (
        "Two editors saved at the same moment and the second one silently won.",
        "lost update when people write concurrently",
    ),
    (
        "The robot arm hesitates for a blink before every grasp.",
        "small pause of the manipulator ahead of picking things up",
    ),
    (
        "Our oldest client still uses a fax, so the invoice must fit on one page without pictures.",
        "billing document constraints for a customer with ancient technology",
    ),
    (
        "The wind park sends its readings in bursts whenever the mobile network comes back.",
        "turbines deliver telemetry irregularly due to poor reception",
    ),
    (
        "The game feels unfair since bots aim better than the best humans.",
        "computer opponents are too strong",
    ),
    (
        "Typing in the search field freezes the page for a second with ten thousand contacts.",
        "address book filter is laggy with large data",
    ),
    (
        "The microphone picks up the keyboard more loudly than the speaker.",
        "clicking noise drowns the voice in recordings",
    ),
    (
        "The kindergarten wants photos of children to disappear when they leave.",
        "deletion of kids' images at the end of enrolment",
    ),
    (
        "The compiler accepts the code, but the linker cannot find half of the symbols on Windows.",
        "undefined references on Microsoft's platform",
    ),
    (
        "Every winter the parking sensors report ghosts because of snow on the lens.",
        "false vehicle detections in cold weather",
    ),
    (
        "The bookshop sorts authors by first name, which annoys librarians.",
        "catalogue ordering of writers is wrong",
    ),
    (
        "The auditors asked who looked at salary files in August.",
        "access log of payroll documents requested by inspectors",
    ),
    (
        "A reader in a wheelchair cannot reach the terminal in the entrance hall.",
        "kiosk mounted too high for disabled visitors",
    ),
    (
        "The scanner app straightens pages nicely but eats the page numbers.",
        "document capture crops off the footer",
    ),
    (
        "The beekeeper wants a text message if a hive falls over.",
        "alarm via SMS when a colony is knocked down",
    ),
    (
        "Money sent on Friday evening arrives on Tuesday because of the holiday.",
        "bank transfer delayed over a long weekend",
    ),
    (
        "The subtitles run ahead of the lips after every advertisement.",
        "captions out of sync following commercials",
    ),
    (
        "The clinic's printer uses the last patient's label when the queue is empty.",
        "stickers with the wrong person's data come out",
    ),
    (
        "We cannot hire in Berlin before the works council has signed.",
        "recruiting blocked until employee representatives agree",
    ),
    ("The telescope drifts by a hair when the dome turns.", "pointing error while the roof rotates"),
    (
        "The recipe site shows cups to Europeans who own a kitchen scale.",
        "measurements not localized to grams for cooking",
    ),
    ("Refunds above a thousand need the signature of two people.", "approval rule for large reimbursements"),
    ("The child lock can be opened by pressing the logo five times.", "parental control bypass"),
    (
        "The podcast feed lists episodes twice if the title has an emoji.",
        "duplicate shows caused by special characters",
    ),
    (
        "The river gauge is under water itself, so the last value repeats for days.",
        "flooded level meter delivers stale data",
    ),
    (
        "We bought the smaller office because most people come in twice a week.",
        "workspace sized for part-time attendance",
    ),
    ("The goalkeeper statistic counts own goals as saves.", "football numbers wrong for keepers"),
    (
        "The tractor refuses to start until the licence server answers.",
        "farm machine depends on an online activation check",
    ),
    (
        "The second monitor stays dark when the dock wakes before the laptop.",
        "external screen is black after sleep",
    ),
    (
        "The orchestra's tablets turn two pages at once when the pedal is pressed hard.",
        "digital sheet music skips because of the foot switch",
    ),
];

/// Subjects of decisions: as said, and as asked later.
pub const PURPOSES: [(&str, &str); 16] = [
    ("keeping sessions between requests", "remembering logged-in users"),
    ("sending mail to customers", "outgoing email"),
    ("drawing the charts on the dashboard", "visualising the figures"),
    ("searching the product catalogue", "looking up articles"),
    ("queueing the background work", "running jobs asynchronously"),
    ("signing the download links", "protecting file URLs"),
    ("storing the uploaded pictures", "where images of users are kept"),
    ("checking the input of forms", "validating what people enter"),
    ("deploying to production", "rolling out releases"),
    ("collecting the metrics", "monitoring numbers"),
    ("translating the interface", "localisation of the screens"),
    ("paying the suppliers", "settling invoices of vendors"),
    ("testing the mobile application", "quality assurance on phones"),
    ("compressing the archives", "making old data smaller"),
    ("reviewing the changes", "checking code before the merge"),
    ("naming the branches", "convention for version control lines of work"),
];

/// Choices, four for each subject.
pub const CHOICES: [[&str; 4]; 16] = [
    ["Redis", "signed cookies", "Memcached", "a PostgreSQL table"],
    ["Postmark", "Amazon SES", "our own Postfix", "Mailgun"],
    ["Vega", "D3", "plain SVG", "ECharts"],
    ["Typesense", "Elasticsearch", "SQLite full text", "Meilisearch"],
    ["Sidekiq", "NATS", "RabbitMQ", "a cron script"],
    ["HMAC tokens", "presigned S3 addresses", "JWT", "one-time codes"],
    ["a MinIO bucket", "the local disk", "Cloudflare R2", "Azure blobs"],
    ["JSON Schema", "Zod", "hand-written checks", "Pydantic"],
    ["Kamal", "Argo CD", "a shell script", "Nomad"],
    ["Prometheus", "StatsD", "VictoriaMetrics", "OpenTelemetry"],
    ["Fluent", "gettext", "ICU messages", "spreadsheets"],
    ["SEPA batches", "Wise", "the bank's portal", "Stripe Connect"],
    ["Maestro", "Appium", "testers in the office", "Detox"],
    ["zstd", "LZ4", "xz", "plain gzip"],
    ["pairs", "two approvals", "a weekly round", "mail patches"],
    ["ticket numbers", "the author's initials", "dates", "short verbs"],
];

pub const REASONS: [&str; 8] = [
    "it survives a restart",
    "the team knows it already",
    "it was the cheapest",
    "legal insisted",
    "the other one needs a server of its own",
    "it was twice as fast in the trial",
    "nobody has to maintain it",
    "the customer asked for it",
];

/// Something that is allowed in one place and forbidden in another: the act, both places, and the question
/// about the ban.
pub const BANS: [(&str, &str, &str, &str); 32] = [
    (
        "restart the gateway",
        "during the day",
        "at night",
        "is rebooting the edge proxy in working hours prohibited?",
    ),
    (
        "run migrations by hand",
        "in production",
        "in staging",
        "is manual schema change forbidden on the live database?",
    ),
    ("log request bodies", "for payments", "for searches", "which traffic must not be written to log files?"),
    ("use the shared account", "for deployments", "for the demo", "may we release with the common login?"),
    ("cache the answers", "for prices", "for pictures", "what should never be served stale?"),
    ("retry automatically", "after a charge", "after a read", "what must not be attempted twice?"),
    ("send reminders", "on Sundays", "on weekdays", "when are nudges to people not allowed?"),
    ("skip the review", "for the parser", "for typos", "which part needs a second pair of eyes always?"),
    ("store birth dates", "of children", "of employees", "whose age must not be saved?"),
    ("copy customer data", "to laptops", "to the vault", "where must records of clients not go?"),
    ("use floating point", "for money", "for coordinates", "number type to avoid with amounts"),
    ("open the valve", "above four bar", "below two bar", "at what pressure is releasing not permitted?"),
    (
        "upgrade the driver",
        "on the old cluster",
        "on the new cluster",
        "machines whose kernel module has to stay",
    ),
    (
        "delete the branch",
        "before the audit",
        "after the audit",
        "keep the line of code until inspectors are done",
    ),
    ("call the vendor", "without a ticket", "with a ticket", "what is needed prior to phoning the supplier?"),
    ("enable the flag", "for schools", "for companies", "educational customers excluded from the feature"),
    ("trust the clock", "of the sensors", "of the server", "whose time is unreliable?"),
    ("translate the names", "of streets", "of months", "what stays in the original language?"),
    ("charge the battery", "below zero degrees", "at room temperature", "cold weather and refilling energy"),
    ("publish the numbers", "before the board meeting", "after the board meeting", "embargo on the figures"),
    ("mount the volume", "twice", "read-only", "disk attached to two machines at once"),
    ("mention the price", "in the first mail", "in the offer", "what to leave out of the initial message"),
    ("use recursion", "in the firmware", "in the tools", "self-calling functions banned where?"),
    ("block the main thread", "while scrolling", "at startup", "when must the interface not freeze?"),
    ("reuse the salt", "for new passwords", "in the tests", "hash ingredient that has to be fresh"),
    ("feed the model", "with support chats", "with the manuals", "text that must not be trained on"),
    ("touch the config", "while it syncs", "when it is idle", "when are settings hands off?"),
    ("rename the columns", "in the report", "in the draft", "headers that other people depend on"),
    (
        "invite guests",
        "to the incident channel",
        "to the lunch channel",
        "outsiders unwelcome in which room?",
    ),
    ("water the plants", "with the tap", "with rain water", "source that harms the flora"),
    ("print the keys", "on the receipts", "on the envelope", "where secrets must not appear on paper"),
    ("paint the rail", "before it is dry", "after sanding", "coating too early"),
];

/// Parts of names in code.
pub const VERBS: [&str; 8] =
    ["parse", "flush", "merge", "resolve", "encode", "schedule", "validate", "rotate"];
pub const NOUNS: [&str; 8] =
    ["header", "ledger", "cursor", "manifest", "quota", "segment", "voucher", "snapshot"];

pub const FAULTS: [&str; 8] = [
    "returns early when the list is empty",
    "holds the lock for too long",
    "is off by one at the end of a page",
    "swallows the timeout",
    "allocates for every byte",
    "is called twice after a reconnect",
    "compares text without regard to case",
    "leaves a file open",
];

pub const PROJECTS: [&str; 16] = [
    "Atlas", "Borealis", "Cinder", "Dunlin", "Ember", "Fathom", "Garnet", "Halyard", "Indigo", "Juniper",
    "Kestrel", "Lantern", "Mistral", "Nimbus", "Osprey", "Pinnacle",
];

/// Settings that differ from project to project: as said, and as asked.
pub const SETTINGS: [(&str, &str); 4] = [
    ("The service of {project} listens on port {number}.", "on which port can we reach the server?"),
    ("{project} keeps its logs for {number} days.", "what is the retention of log files?"),
    ("At most {number} people may be in a room of {project}.", "what is the maximum number of participants?"),
    ("The trial of {project} ends after {number} hours.", "how long can it be evaluated for free?"),
];

/// Small talk between the turns that matter.
pub const SMALL_TALK: [&str; 24] = [
    "Thanks, that looks good to me.",
    "Let me have a look at it and come back to you.",
    "Could you show me the output once more?",
    "I ran it again and it passes now.",
    "Here is the list of files that changed.",
    "Yes, please go on.",
    "I will summarize what we have so far.",
    "That is odd, it worked yesterday.",
    "Good morning! Where did we stop?",
    "The command finished without a message.",
    "I am not sure I understand the question.",
    "Let us do the simple thing first.",
    "Can you explain the second step?",
    "There are three ways to do this.",
    "I opened a ticket for it.",
    "The document has twelve pages.",
    "No, the other one, further down.",
    "It takes about ten minutes.",
    "I added a comment where it was unclear.",
    "We should ask the customer first.",
    "The numbers of this week are in the table.",
    "Please wait, I am still reading.",
    "It is fixed on my machine.",
    "See you tomorrow.",
];
