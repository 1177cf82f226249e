//! FastCGI records: encoding requests, decoding answers.
