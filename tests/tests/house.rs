//! Tests of the source, the documents, the tables of results and the test programs.

mod arena_methods;
mod changed;
mod configuration_page;
mod guards;
mod initializers;
mod ladder_steps;
mod layers;
mod limits;
mod markdown_links;
mod named_tests;
mod notices;
mod phrases;
mod promises;
mod results;
mod signatures;
mod source_map;
mod sources;
mod statistics_page;
mod test_names;
mod test_programs;
mod tour;
mod trust;
mod type_names;
mod views;
mod wrapping;
