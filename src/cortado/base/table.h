// Tables of text: aligned for a terminal, or markdown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// Columns that a text takes on a terminal: combining marks and zero-width characters 0, East Asian wide and emoji 2,
// else 1.
int display_width(std::string_view utf8);

class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // One cell a column; missing cells are empty. A column is right-aligned when all of its cells look like numbers.
  void add_row(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }

  std::string text() const;      // a line of header, a rule, the rows; ends with a newline
  std::string markdown() const;  // "|" in cells is escaped

 private:
  std::vector<int> widths(const std::vector<std::vector<std::string>>& lines) const;
  bool is_numeric(size_t column) const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cortado
