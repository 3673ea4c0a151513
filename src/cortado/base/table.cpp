#include "cortado/base/table.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <numeric>
#include <sstream>

#include "cortado/base/human.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

struct Range {
  uint32_t first, last;
};

// The blocks that matter in practice, not Unicode's complete tables.
constexpr Range kZeroWidth[] = {{0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F},
                                {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
constexpr Range kDoubleWidth[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xAC00, 0xD7A3},
                                  {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},
                                  {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

template <size_t N>
bool is_in(const Range (&ranges)[N], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& range) { return code >= range.first && code <= range.last; });
}

bool looks_like_number(const std::string& cell) {
  if (cell.empty() || cell == "-") return true;
  const size_t start = cell[0] == '-' || cell[0] == '+' || cell[0] == '~' ? 1 : 0;
  return start < cell.size() && std::isdigit(static_cast<unsigned char>(cell[start]));
}

int total_width(const std::vector<int>& widths) {
  return std::accumulate(widths.begin(), widths.end(), 2 * static_cast<int>(widths.size()) - 2);
}

using Lines = std::vector<std::vector<std::string>>;

// Returns the display width of the longest word of each column.
std::vector<int> longest_words(const Lines& lines) {
  std::vector<int> longest(lines.front().size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      std::istringstream words(line[i]);
      for (std::string word; words >> word;) longest[i] = std::max(longest[i], display_width(word));
    }
  }
  return longest;
}

// Narrows the widest columns, down to their longest words, until the lines fit.
void narrow(std::vector<int>& width, const std::vector<int>& least, int columns) {
  while (total_width(width) > columns) {
    size_t widest = width.size();
    for (size_t i = 0; i < width.size(); ++i) {
      if (width[i] > least[i] && (widest == width.size() || width[i] > width[widest])) widest = i;
    }
    if (widest == width.size()) return;
    --width[widest];
  }
}

std::string pad(const std::string& cell, int width, bool right) {
  const std::string space(static_cast<size_t>(std::max(0, width - display_width(cell))), ' ');
  return right ? space + cell : cell + space;
}

}  // namespace

int terminal_columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Utf8Char c = utf8_char(text);
    width += c.length == 0 ? 1 : is_in(kZeroWidth, c.code) ? 0 : is_in(kDoubleWidth, c.code) ? 2 : 1;
    text.remove_prefix(static_cast<size_t>(std::max(1, c.length)));
  }
  return width;
}

size_t fitting(std::string_view text, int columns) {
  size_t at = 0;
  for (int used = 0; at < text.size();) {
    const size_t length = static_cast<size_t>(std::max(1, utf8_char(text.substr(at)).length));
    used += display_width(text.substr(at, length));
    if (at > 0 && used > columns) break;
    at += length;
  }
  return at;
}

std::vector<std::string> fold(std::string_view text, int columns) {
  std::vector<std::string> lines;
  while (display_width(text) > columns) {
    size_t length = fitting(text, columns);
    // Break after a word that ends exactly here, otherwise before the word that crosses the edge. A word wider than the
    // column is split.
    const size_t space = text.substr(0, length + 1).find_last_of(' ');
    if (space != std::string_view::npos && space > 0) length = space;
    lines.emplace_back(text.substr(0, length));
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ', length)));
  }
  lines.emplace_back(text);
  return lines;
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(header_.size());
  rows_.push_back(std::move(cells));
}

bool Table::is_numeric(size_t column) const {
  return !rows_.empty() &&
         std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return looks_like_number(row[column]); });
}

std::vector<int> Table::widths(const Lines& lines) const {
  std::vector<int> width(header_.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], display_width(line[i]));
  }
  return width;
}

int Table::width() const {
  auto lines = rows_;
  lines.push_back(header_);
  return total_width(widths(lines));
}

// Writes a row; a cell may take several lines.
std::string Table::line(const std::vector<std::string>& cells, const std::vector<int>& width) const {
  std::vector<std::vector<std::string>> parts;
  size_t height = 1;
  for (size_t i = 0; i < width.size(); ++i) {
    parts.push_back(fold(cells[i], width[i]));
    height = std::max(height, parts[i].size());
  }
  std::string out;
  for (size_t part = 0; part < height; ++part) {
    std::string text;
    for (size_t i = 0; i < width.size(); ++i) {
      text += (i ? "  " : "") + pad(part < parts[i].size() ? parts[i][part] : "", width[i], is_numeric(i));
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

std::string Table::text(int columns) const {
  Lines lines{header_};
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  std::vector<int> width = widths(lines);
  if (columns > 0) narrow(width, longest_words(lines), columns);
  std::string out;
  for (size_t row = 0; row < lines.size(); ++row) {
    out += line(lines[row], width);
    if (row > 0) continue;
    for (size_t i = 0; i < width.size(); ++i) out += (i ? "  " : "") + std::string(static_cast<size_t>(width[i]), '-');
    out += "\n";
  }
  return out;
}

std::string Table::markdown() const {
  Lines lines{header_};
  lines.insert(lines.end(), rows_.begin(), rows_.end());
  for (auto& line : lines) {
    for (auto& cell : line) {
      for (size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) cell.insert(at, 1, '\\');
    }
  }
  std::vector<int> width = widths(lines);
  for (int& columns : width) columns = std::max(columns, 3);
  std::string out;
  for (size_t row = 0; row < lines.size(); ++row) {
    out += "|";
    for (size_t i = 0; i < header_.size(); ++i) out += " " + pad(lines[row][i], width[i], is_numeric(i)) + " |";
    out += "\n";
    if (row > 0) continue;
    out += "|";
    for (size_t i = 0; i < width.size(); ++i) {
      out += std::string(static_cast<size_t>(width[i]) + 1, '-') + (is_numeric(i) ? ":|" : "-|");
    }
    out += "\n";
  }
  return out;
}

std::string plain(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::function<std::string(const Json&)> decimals(int digits, double unit) {
  return [=](double value) { return fixed(value / unit, digits); };
}

Table table_of(const Json& results, const std::vector<Column>& columns) {
  std::vector<std::string> header;
  for (const Column& column : columns) header.push_back(column.heading);
  Table table(header);
  for (const Json& result : results) {
    std::vector<std::string> cells;
    for (const Column& column : columns) {
      const Json::json_pointer place(column.place);
      cells.push_back(result.contains(place) ? column.shown(result.at(place)) : "");
    }
    table.add_row(cells);
  }
  return table;
}

}  // namespace cortado
