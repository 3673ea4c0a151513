#include "cortado/convert/cache.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/progress.h"
#include "cortado/base/random.h"
#include "cortado/mechanisms/shared/student.h"

namespace cortado {
namespace {

constexpr int64_t kMostStatements = 12;
constexpr double kRidge = 1e-3, kNearFloor = 1e-3, kFarFloor = 0.1;
constexpr int64_t kLargest = 4;  // a pair's worth for fading is the mean of this many weights

// A stands for a word, N for a number, H for six hexadecimal digits. No form is taken from RULER or another test of
// recall.
const std::vector<std::string> kForms = {"Remember that the number of A is N.",
                                         "A lives at house N.",
                                         "My A has the registration N, do not forget it.",
                                         "In the A file somebody noted N.",
                                         "The phone of Mr. A ends in N.",
                                         "The A was bought for N dollars.",
                                         "The train to A leaves from platform N.",
                                         "The A in the hall has the serial H-H.",
                                         "The captain of the A is called A A.",
                                         "Mrs. A sold her A to a man from A.",
                                         "A = N",
                                         "Key A: A-N",
                                         "Room N belongs to A.",
                                         "For A, dial N.",
                                         "There are N jars of A in the cellar.",
                                         "The account of the A club is N at the bank of A.",
                                         "To open the A box, turn the wheel to N.",
                                         "Flight N goes to A on Monday.",
                                         "A-A weighs N grams.",
                                         "Note for later: A-A has locker N.",
                                         "The team of A scored N points against A.",
                                         "It was in N that A was founded.",
                                         "The price of A-A rose to N.",
                                         "Order N is for A.",
                                         "According to the list, A comes on page N.",
                                         "The license of A reads A N H.",
                                         "A's favourite drink is A with A.",
                                         "The road from A to A is N miles long.",
                                         "If you meet A, say the word A.",
                                         "The parcel for A-A carries the label N.",
                                         "N is what A wrote on the wall.",
                                         "You reach the A office at extension N.",
                                         "On shelf N stands the book about A.",
                                         "The dog of A is called A.",
                                         "A A signed the contract number N.",
                                         "Invoice: A-A, amount N.",
                                         "The well of A is N feet deep.",
                                         "Nobody but A knows that the safe holds N coins.",
                                         "user A-A: id H",
                                         "The A lamp needs bulbs of type A-N.",
                                         "At the A gate they ask for the code H.",
                                         "A paid N for the painting of a A.",
                                         "The winner of the A prize was A A from A.",
                                         "Ticket N, seat A.",
                                         "The recipe of A takes N spoons of A.",
                                         "Version N of A came before A.",
                                         "Her brother A works in A as a A maker.",
                                         "In case of fire call A at N."};
const std::vector<std::string> kWords = {
    "amber",   "basil",   "cedar",  "delta",  "ember",  "fjord",  "garnet", "hazel",  "ivory",  "jasper",
    "kestrel", "lemon",   "maple",  "nectar", "opal",   "panda",  "quill",  "raven",  "sable",  "tulip",
    "umber",   "violet",  "willow", "xenon",  "yarrow", "zebra",  "anchor", "basket", "candle", "dragon",
    "engine",  "feather", "guitar", "hammer", "island", "jacket", "kettle", "ladder", "magnet", "needle",
    "orange",  "pepper",  "quartz", "rocket", "saddle", "tunnel", "valley", "wagon",  "blue",   "brave",
    "calm",    "eager",   "gentle", "happy",  "little", "proud",  "quiet",  "rapid",  "silent", "tall",
    "warm",    "young",   "Cairo",  "Lima",   "London", "Oslo",   "Paris",  "Quito",  "Vienna", "Boston",
    "Alice",   "Martin",  "Clara",  "Hugo",   "Nadia",  "Peter",  "Robert", "Helen"};

}  // namespace

Reminders::Reminders(std::shared_ptr<const Chunks> text, const Tokenizer& tokenizer, uint64_t seed)
    : chunks_(std::move(text)), tokenizer_(tokenizer), seed_(seed) {
  try {
    for (const std::string& form : kForms) writes_ = writes_ && tokenizer_.decode(tokenizer_.encode(form)) == form;
  } catch (const InputError&) {
    writes_ = false;  // a character that the tokenizer does not know
  }
}

std::vector<int64_t> Reminders::statement(const RandomStream& random, int64_t number, int64_t place) const {
  uint64_t drawn = 64 * static_cast<uint64_t>(place);
  const auto below = [&](uint64_t bound) { return random.below(bound, static_cast<uint64_t>(number), ++drawn); };
  if (!writes_) {
    const int64_t length = std::min<int64_t>(12, chunks_->length() / 16 + 1);
    const Tensor other = chunks_->batch(number + 1 + place, 1).tokens[0];
    const auto first = static_cast<int64_t>(below(static_cast<uint64_t>(other.size(0) - length)));
    const Tensor stretch = other.narrow(0, first, length).contiguous();
    return {stretch.const_data_ptr<int64_t>(), stretch.const_data_ptr<int64_t>() + length};
  }
  std::string text = " ";
  const std::string& form = kForms[below(kForms.size())];
  for (size_t i = 0; i < form.size(); ++i) {
    const char letter = form[i];
    const bool alone = !std::isalpha(static_cast<unsigned char>(text.back())) &&
                       (i + 1 == form.size() || !std::isalpha(static_cast<unsigned char>(form[i + 1])));
    if (alone && letter == 'A') {
      text += kWords[below(kWords.size())];
    } else if (alone && letter == 'N') {
      for (uint64_t digits = 2 + below(6); digits > 0; --digits) text += static_cast<char>('0' + below(10));
    } else if (alone && letter == 'H') {
      for (int digit = 0; digit < 6; ++digit) text += "0123456789abcdef"[below(16)];
    } else {
      text += letter;
    }
  }
  const auto tokens = tokenizer_.encode(text);
  return {tokens.begin(), tokens.end()};
}

Reminders::Text Reminders::text(int64_t number) const {
  const RandomStream random(seed_, "reminders");
  const Tensor plain = chunks_->batch(number, 1).tokens;
  const auto n = static_cast<uint64_t>(number);
  const int64_t length = chunks_->length();
  std::vector<std::vector<int64_t>> said;
  int64_t tokens = 0;
  for (int64_t i = 0, count = 1 + static_cast<int64_t>(random.below(kMostStatements, n)); i < count; ++i) {
    const auto next = statement(random, number, i + 1);
    // statements, each said twice, take at most a quarter
    if (const auto more = static_cast<int64_t>(next.size()); 8 * (tokens + more) <= length) {
      said.push_back(next);
      tokens += more;
    }
  }
  std::vector<int64_t> places;
  const int64_t own = length - 2 * tokens, low = own / 16, high = std::max(low + 1, own * 5 / 8);
  for (size_t i = 0; i < said.size(); ++i) {
    places.push_back(low + static_cast<int64_t>(random.below(static_cast<uint64_t>(high - low), n, 1 + i)));
  }
  std::sort(places.begin(), places.end());
  std::vector<Tensor> parts;
  int64_t from = 0;
  const auto of = [](const std::vector<int64_t>& list) { return at::tensor(list, at::kLong); };
  for (size_t i = 0; i < said.size(); ++i) {
    parts.push_back(plain[0].slice(0, from, places[i]));
    parts.push_back(of(said[i]));
    from = places[i];
  }
  parts.push_back(plain[0].slice(0, from, own));
  for (const int64_t i : random.permutation(static_cast<int64_t>(said.size()), n)) {
    parts.push_back(of(said[static_cast<size_t>(i)]));
  }
  return {at::cat(parts).unsqueeze(0), tokens};
}

namespace {

// A layer's observations on one text, for the pairs that enough later queries follow.
struct Note {
  Tensor x;     // [n,D]
  Tensor near;  // [Hkv,n]: the mean of the largest weights that the text's queries give a pair
  // Undefined if the text has no reminders:
  Tensor far = {};  // [n]: the largest weight that a reminder's query gives the pair, over all heads
  // [Hkv]: the largest weight that such a query gives to a pair other than the first; the mean over these queries
  Tensor recall = {};
};

Note note_of(const Tensor& x, const CacheStudent::LookBack& found, int64_t reminded) {
  const Tensor weights = found.weights[0];  // [Hkv,T,T]
  const int64_t tokens = weights.size(2), text = tokens - reminded;
  const int64_t usable = tokens - found.behind - found.behind / 3;  // later pairs have too few queries after them
  fail_input_if(usable <= 0, "[--context] sequences of ", tokens,
                " tokens are too short for a cache to learn from: hardly a pair leaves the window");
  const Tensor seen = weights.narrow(2, 0, usable);
  Note note{x[0].narrow(0, 0, usable), std::get<0>(seen.narrow(1, 0, text).topk(std::min(kLargest, text), 1)).mean(1)};
  if (reminded > 0) {
    const Tensor reminders = seen.narrow(1, text, reminded);
    note.far = reminders.flatten(0, 1).amax(0);
    note.recall = reminders.slice(2, 1).amax(2).mean(1);
  }
  return note;
}

// The sums for the regressions of one layer.
class Regression {
 public:
  // `far` is the largest over all layers.
  void add(const Note& note, const Tensor& far) {
    const Tensor given = note.x.to(at::kCPU, at::kDouble);
    const Tensor features = at::cat({given, at::ones({given.size(0), 1}, given.options())}, 1);
    const Tensor fades = note.near.to(at::kCPU, at::kDouble).add(kNearFloor).log();
    const Tensor lasts = far.defined() ? far.to(at::kCPU, at::kDouble).add(kFarFloor).log().expand_as(fades) : fades;
    const Tensor wanted = at::stack({lasts, fades}, 1).flatten(0, 1).t();  // [n,2 Hkv]
    if (!squares_.defined()) {
      squares_ = at::zeros({features.size(1), features.size(1)}, at::kDouble);
      products_ = at::zeros({features.size(1), wanted.size(1)}, at::kDouble);
      wanted_squares_ = at::zeros({wanted.size(1)}, at::kDouble);
      recall_ = at::zeros({fades.size(0) + 1}, at::kDouble);
    }
    squares_ += at::matmul(features.t(), features);
    products_ += at::matmul(features.t(), wanted);
    wanted_squares_ += wanted.square().sum(0);
    if (far.defined()) recall_ += at::cat({note.recall.to(at::kCPU, at::kDouble), at::ones({1}, at::kDouble)});
  }

  void sum(const Ranks& ranks) {
    for (const Tensor& sums : {squares_, products_, wanted_squares_, recall_}) ranks.sum(sums);
  }

  CacheLesson solved(int64_t layer) const {
    const int64_t dim = squares_.size(0) - 1;
    const Tensor ridge = at::eye(dim + 1, at::kDouble) * (kRidge * squares_.diagonal().mean());
    const Tensor map = at::linalg_solve(squares_ + ridge, products_);
    const Tensor count = squares_[dim][dim], mean = products_[dim] / count;
    const Tensor wrong = wanted_squares_ - 2 * (map * products_).sum(0) + (map * at::matmul(squares_, map)).sum(0);
    const Tensor varied = (wanted_squares_ - count * mean.square()).clamp_min(1e-30);
    const Tensor recall = recall_.slice(0, 0, -1) / recall_[-1].clamp_min(1);
    const Tensor explained = (1 - wrong / varied).unflatten(0, {-1, 2}).mean(0);
    CacheLesson lesson;
    lesson.layer = layer;
    lesson.weight = map.narrow(0, 0, dim).t().to(at::kFloat).contiguous();
    lesson.bias = map[dim].to(at::kFloat).contiguous();
    lesson.lasting = explained[0].item<double>();
    lesson.fading = explained[1].item<double>();
    lesson.recall.assign(recall.const_data_ptr<double>(), recall.const_data_ptr<double>() + recall.numel());
    return lesson;
  }

 private:
  Tensor squares_, products_, wanted_squares_;
  Tensor recall_;  // sums per key head, and the number of texts
};

}  // namespace

std::vector<CacheLesson> learn_caches(const LanguageModel& model, const std::shared_ptr<const Chunks>& chunks,
                                      const Tokenizer& tokenizer, const CacheStudy& study, const Ranks& ranks) {
  const at::NoGradGuard no_grad;
  std::vector<Regression> layers(model.mixers().size());
  const Reminders reminders(chunks, tokenizer, study.seed);
  const int64_t texts =
      std::max<int64_t>(std::max<int64_t>(4, ranks.size()), (study.tokens + chunks->length() - 1) / chunks->length());
  ProgressBar bar({.label = "cache",
                   .total = texts,
                   .unit = "tokens",
                   .units_per_count = double(chunks->length()),
                   .quiet = !study.progress || !ranks.first()});
  for (int64_t n = 0; n < texts; ++n) {
    if (study.stop && study.stop()) return {};
    bar.update(n);
    if (n % ranks.size() != ranks.rank()) continue;
    const Reminders::Text text = reminders.text(n);
    std::vector<std::pair<size_t, Note>> notes;
    model.walk(text.tokens.to(model.device()), [&](int64_t layer, const Tensor& x) {
      Mixer& mixer = *model.mixers()[static_cast<size_t>(layer)];
      const CacheStudent* student = cache_student_of(mixer);
      if (!student) return mixer.forward(x, {}, nullptr);
      const auto found = student->look_back(x);
      notes.emplace_back(layer, note_of(x, found, text.reminded));
      return student_of(mixer)->project_output(found.teacher, x);
    });
    Tensor far;
    for (const auto& [layer, note] : notes) far = far.defined() ? at::maximum(far, note.far) : note.far;
    for (const auto& [layer, note] : notes) layers[layer].add(note, far);
  }
  std::vector<CacheLesson> lessons;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!cache_student_of(*model.mixers()[layer])) continue;
    layers[layer].sum(ranks);
    lessons.push_back(layers[layer].solved(static_cast<int64_t>(layer)));
  }
  return lessons;
}

void CacheReport::fields(JsonFields& json) {
  json.integer("layers", layers, 0, std::numeric_limits<int64_t>::max());
  json.integer("key_heads", heads, 0, std::numeric_limits<int64_t>::max());
  json.number("explained_lasting", lasting, -1e9, 1);
  json.number("explained_fading", fading, -1e9, 1);
  json.number("seconds", seconds, 0, 1e12);
  json.field("recall", recall, [](JsonReader& reader) { return reader.object("recall"); });
}

}  // namespace cortado
