//! Tests of the source, the documents and the tables of results.

mod configuration_page;
mod layers;
mod markdown_links;
mod results_csv;
mod words;
