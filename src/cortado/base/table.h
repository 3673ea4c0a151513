// Tables as text, aligned for a terminal, or as markdown.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Returns the number of columns of the terminal that `descriptor` (STDOUT_FILENO, ...) writes to; 0 if it is not a
// terminal or does not report its width.
int terminal_columns(int descriptor);

// Returns the number of terminal columns that a text takes: combining marks and zero-width characters count 0, East
// Asian wide characters and emoji 2, all others 1.
int display_width(std::string_view utf8);

// Returns the byte length of the longest prefix of `text` that fits into `columns`; at least one character.
size_t fitting(std::string_view text, int columns);

// Splits the text into lines of at most `columns`, at spaces where possible.
std::vector<std::string> fold(std::string_view text, int columns);

// A table of texts with a header.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // Adds one cell per column; missing cells are empty. A column is right-aligned if all of its cells look like numbers.
  void add_row(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  int width() const;  // of the lines of text(), in columns of the terminal

  // Returns a header line, a rule and the rows; ends with a newline. With `columns` > 0, folds cells so that lines are
  // no wider than that, as far as their words allow.
  std::string text(int columns = 0) const;
  std::string markdown() const;  // "|" in cells is escaped

 private:
  std::vector<int> widths(const std::vector<std::vector<std::string>>& lines) const;
  bool is_numeric(size_t column) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<int>& width) const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// Shows texts without quotes and other values as JSON.
std::string plain(const Json& value);
// Returns a formatter that divides a number by `unit` and writes it with `digits` decimals.
std::function<std::string(const Json&)> decimals(int digits, double unit = 1);

// A column of a table whose rows are JSON objects. `place` is a JSON pointer to the value ("/share/fma"; "" is the
// whole object), and `shown` formats it. The cell is empty if an object has no such value.
struct Column {
  std::string heading;
  std::string place;
  std::function<std::string(const Json&)> shown = plain;
};
// `results` is a list of objects.
Table table_of(const Json& results, const std::vector<Column>& columns);

}  // namespace cortado
