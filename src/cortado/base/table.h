// Tables of text: aligned for a terminal, or markdown.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Columns of the terminal that `descriptor` (STDOUT_FILENO, ...) writes to; 0 where it is none, or does not say.
int terminal_columns(int descriptor);

// Columns that a text takes on a terminal: combining marks and zero-width characters 0, East Asian wide and emoji 2,
// else 1.
int display_width(std::string_view utf8);

// Bytes of the longest beginning of `text` that fits into `columns`; at least a character.
size_t fitting(std::string_view text, int columns);

// The text in lines of at most `columns`, at its spaces where there are some.
std::vector<std::string> fold(std::string_view text, int columns);

class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // One cell a column; missing cells are empty. A column is right-aligned when all of its cells look like numbers.
  void add_row(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  int width() const;  // of the lines of text()

  // A line of header, a rule, the rows; ends with a newline. With `columns`, cells are folded where the lines would be
  // wider, as far as that goes.
  std::string text(int columns = 0) const;
  std::string markdown() const;  // "|" in cells is escaped

 private:
  std::vector<int> widths(const std::vector<std::vector<std::string>>& lines) const;
  bool is_numeric(size_t column) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<int>& width) const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// Texts as they are, other values as JSON.
std::string plain(const Json& value);
// A number of `unit`s, with so many digits after the point.
std::function<std::string(const Json&)> decimals(int digits, double unit = 1);

// A column of results that are JSON objects: where in each its value is ("/share/fma", a JSON pointer; "" is all of
// it), and how that is shown. The cell of a result without it is empty.
struct Column {
  std::string heading;
  std::string place;
  std::function<std::string(const Json&)> shown = plain;
};
// `results`: a list.
Table table_of(const Json& results, const std::vector<Column>& columns);

}  // namespace cortado
