//! Tests of the source, the documents, the tables of results and the test programs.

mod configuration_page;
mod guards;
mod ladder_steps;
mod layers;
mod markdown_links;
mod results_csv;
mod source_map;
mod test_names;
mod test_programs;
mod type_names;
mod views;
mod words;
