//! The look of every table: columns two blanks apart, no lines.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

/// Gives an empty table with a header. Cells are wrapped at `width`; without one, as for a pipe, each row is one line.
pub(super) fn table<const N: usize>(header: [&str; N], width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
