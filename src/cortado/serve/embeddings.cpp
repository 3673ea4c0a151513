#include "cortado/serve/embeddings.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "cortado/base/error.h"
#include "cortado/serve/wire_parts.h"

namespace cortado {
namespace {

constexpr size_t kMostTexts = 2048;  // OpenAI's limit

// Waits for the text's vector. Returns false if the client is gone.
bool is_read(Answer& answer, const Reply::Write& write) {
  AnswerPart part;
  while (true) {
    switch (answer.next(part, kLook)) {
      case Answer::Got::kEnd:
        return true;
      case Answer::Got::kNone:
        if (!write("")) return false;
        break;
      case Answer::Got::kPart:
        if (part.finish == Finish::kCancelled) return false;
        if (part.finish == Finish::kTimeout) throw WireError(503, "the texts were not read in the time of a request");
    }
  }
}

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; ++j) three = three << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t digit = 0; digit < 4; ++digit) {
      const bool there = i + digit <= bytes.size();
      text += there ? kDigits[three >> (18 - 6 * digit) & 63] : '=';
    }
  }
  return text;
}

Json vector_of(const EmbeddingCall& call, std::vector<float> pooled) {
  if (call.dimensions) pooled.resize(static_cast<size_t>(*call.dimensions));
  if (call.normalize) {
    const double length = std::sqrt(std::inner_product(pooled.begin(), pooled.end(), pooled.begin(), 0.0));
    if (length > 0) {
      for (float& x : pooled) x = static_cast<float>(x / length);
    }
  }
  if (!call.base64) return pooled;
  return base64(std::string_view(reinterpret_cast<const char*>(pooled.data()), pooled.size() * sizeof(float)));
}

// The texts that the engine reads, in their order, and those that have been read.
class Texts {
 public:
  Texts(const EmbeddingCall& call, Engine& engine) : call_(call), engine_(engine) {}
  ~Texts() {
    for (const auto& answer : open_) answer->cancel();
  }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  bool read_all(const Reply::Write& write) {
    while (data_.size() < call_.requests.size()) {
      ask();
      const auto next = open_.front();
      if (!is_read(*next, write)) return false;
      open_.pop_front();
      tokens_ += static_cast<int64_t>(next->request().tokens.size());
      data_.push_back(
          {{"object", "embedding"}, {"index", data_.size()}, {"embedding", vector_of(call_, next->pooled())}});
    }
    return true;
  }

  Json reply() {
    return {{"object", "list"},
            {"data", std::move(data_)},
            {"model", engine_.models()[call_.model].name},
            {"usage", {{"prompt_tokens", tokens_}, {"total_tokens", tokens_}}}};
  }

 private:
  // Keeps as many texts with the engine as it reads at a time.
  void ask() {
    while (asked_ < call_.requests.size() && std::ssize(open_) < engine_.options().rows) {
      try {
        open_.push_back(engine_.ask(call_.requests[asked_]));
        ++asked_;
      } catch (const Ending&) {
        throw;
      } catch (const Busy&) {
        if (open_.empty()) throw;
        return;
      }
    }
  }

  const EmbeddingCall& call_;
  Engine& engine_;
  std::deque<std::shared_ptr<Answer>> open_;
  size_t asked_ = 0;
  Json data_ = Json::array();
  int64_t tokens_ = 0;
};

TextPooling read_pooling(Body& body) {
  const std::string name = body.text("pooling", "mean");
  if (name == "mean") return TextPooling::kMean;
  if (name == "last") return TextPooling::kLast;
  if (name != "cls") body.fail("pooling", "must be \"mean\", \"last\" or \"cls\", got " + Json(name).dump());
  return TextPooling::kFirst;
}

}  // namespace

EmbeddingCall read_embeddings(const Json& json, const Engine& engine, const WireLimits& limits) {
  Body body(json, kEmbedding, limits.strict);
  EmbeddingCall call;
  call.model = find_model(json, engine);
  body.ignore({"model"});
  const std::string format = body.text("encoding_format", "float");
  if (format != "float" && format != "base64") body.fail("encoding_format", "must be \"float\" or \"base64\"");
  call.base64 = format == "base64";
  call.normalize = body.boolean("normalize", true);
  call.dimensions = body.optional_integer("dimensions", 1, engine.models()[call.model].model->config().dim);
  const bool begin = body.boolean("add_special_tokens", true);
  Request request;
  request.model = call.model;
  request.most_tokens = 0;
  request.seconds = limits.seconds;
  request.pooling = read_pooling(body);
  auto texts = read_prompts(body, "input", {engine, call.model, limits, begin, kMostTexts});
  body.finish();
  call.unknown = body.unknown();
  for (auto& tokens : texts) {
    Request one = request;
    one.tokens = std::move(tokens);
    fit_prompt(one, "input", engine, limits);
    call.requests.push_back(std::move(one));
  }
  return call;
}

bool write_embeddings(const EmbeddingCall& call, Engine& engine, const Reply::Write& write) {
  Texts texts(call, engine);
  return texts.read_all(write) && write(dump(texts.reply()));
}

}  // namespace cortado
