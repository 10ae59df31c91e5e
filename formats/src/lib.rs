//! How others write conversations.
