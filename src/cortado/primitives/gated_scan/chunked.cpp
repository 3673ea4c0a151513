#include "cortado/primitives/gated_scan/chunked.h"

#include <bit>

#include "cortado/primitives/common.h"

namespace cortado::gated {

namespace {

// The time axis (dimension 1) of [B,T,h,*] from `start`, as chunks: [n,B,h,C,*], a view.
Tensor as_chunks(const Tensor& x, int64_t start, int64_t chunks, int64_t chunk) {
  const Tensor parts = x.narrow(1, start, chunks * chunk).unflatten(1, {chunks, chunk});
  return x.dim() == 4 ? parts.permute({1, 0, 3, 2, 4}) : parts.permute({1, 0, 3, 2});
}

// state_{c+1} = through_c ⊙ state_c + updates_c over the chunks, or from the last chunk to the first: all n+1 states
// [n+1,B,H,K,V], states[c] and states[c+1] being those at the start and at the end of chunk c.
Tensor carry(const Tensor& updates, const Tensor& through, const Tensor& start, bool backward) {
  const int64_t chunks = updates.size(0);
  std::vector<int64_t> sizes = updates.sizes().vec();
  ++sizes[0];
  const Tensor states = at::empty(sizes, updates.options());
  const Tensor first = states.select(0, backward ? chunks : 0);
  start.defined() ? first.copy_(start) : first.zero_();
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t c = backward ? chunks - 1 - i : i;
    const Tensor from = states.select(0, backward ? c + 1 : c);
    Tensor to = states.select(0, backward ? c : c + 1);
    if (through.defined()) {
      at::addcmul_out(to, updates.select(0, c), from, through.select(0, c));
    } else {
      at::add_out(to, updates.select(0, c), from);
    }
  }
  return states;
}

// The arguments as chunks, and the states at the chunks' bounds.
struct Form {
  Layout layout;
  Tensor y, x, w, v;
  Decay decay;
  Tensor entering = {}, leaving = {};              // y ⊙ exp(gates from the chunk's start), x ⊙ exp(gates to its end)
  Tensor starts = {}, final_state = {};            // S at each chunk's start [n,B,H,K,V], and at the end
  Tensor end_gradients = {}, start_gradient = {};  // ∂L/∂S at each chunk's end, and at the start of all

  static Tensor flat(const Tensor& x) { return x.flatten(0, 2); }
  Tensor like(const Tensor& flat_result) const {
    return flat_result.view({layout.chunks(), layout.batch, layout.heads, flat_result.size(1), flat_result.size(2)});
  }

  void forward_states(const Tensor& initial) {
    leaving = decay.leaving(x);
    const Tensor updates = like(at::bmm(flat(leaving).transpose(1, 2), flat(v)));
    const Tensor states = carry(updates, decay.through(), initial, false);
    starts = states.narrow(0, 0, layout.chunks());
    final_state = states.select(0, layout.chunks());
  }

  void backward_states(const Tensor& final_grad) {
    const Tensor updates = like(at::bmm(flat(entering).transpose(1, 2), flat(w)));
    const Tensor states = carry(updates, decay.through(), final_grad, true);
    end_gradients = states.narrow(0, 1, layout.chunks());
    start_gradient = states.select(0, 0);
  }

  // The gradient of the gates' sums that the state between the chunks makes, from its parts' gradients.
  GateFlow flow(const Tensor& from_state, const Tensor& to_state) const {
    GateFlow flow;
    const bool factors = decay.of_factors();  // their own gradients, not their logs'
    flow.enter = (factors ? y : entering) * from_state;
    flow.leave = (factors ? x : leaving) * to_state;
    const Tensor crossing = (starts * end_gradients).sum(-1, true);
    flow.through = (factors ? crossing : crossing.mul(decay.through())).transpose(-1, -2);
    if (decay.per_head()) {
      for (Tensor* part : {&flow.enter, &flow.leave, &flow.through}) *part = part->sum(-1, true);
    }
    return flow;
  }
};

Form open_form(const FormInputs& in, const FormOptions& options) {
  const int64_t tokens = in.x.size(1), chunk = chunk_length(tokens, options.chunk);
  const Layout layout{in.x.size(0), tokens, options.heads, chunk, options.type, options.reverse};
  Tensor g = to_chunks(in.g, layout, options.decay == DecayKind::kFactors ? 1 : 0);
  if (g.defined() && g.dim() == 4) g = g.unsqueeze(-1);
  Tensor bonus;
  if (in.bonus.defined()) {
    const int64_t repeats = options.heads / in.bonus.size(0);
    bonus = in.bonus.to(options.type).repeat_interleave(repeats, 0).view({1, 1, options.heads, 1, in.bonus.size(1)});
  }
  const Decay decay(g, bonus, chunk, in.x.options().dtype(options.type), options.decay);
  Form form{layout, to_chunks(in.y, layout), to_chunks(in.x, layout), to_chunks(in.w, layout), to_chunks(in.v, layout),
            decay};
  form.forward_states(in.initial);
  if (form.y.defined()) form.entering = decay.entering(form.y);
  return form;
}

// All of differentiate_form on one stretch of time.
FormOutputs differentiate_segment(const FormInputs& in, const FormOptions& options) {
  if (in.beta.defined()) return delta::differentiate_segment(in, options);
  Form form = open_form(in, options);
  const Layout& layout = form.layout;
  const auto flat = &Form::flat;
  FormOutputs out;
  out.final_state = form.final_state.clone();
  if (options.want_rest) form.backward_states(in.final_grad);

  PairWork work{};
  work.scores = options.want_w || options.want_rest;
  work.gate = options.want_gate;
  Tensor from_state, to_state;  // what the state between the chunks gives y and x, before their decays
  if (options.want_y || options.want_rest) work.m = at::bmm(flat(form.w), flat(form.v).transpose(1, 2));
  if (options.want_y || options.want_gate) {
    from_state = form.like(at::bmm(flat(form.w), flat(form.starts).transpose(1, 2)));
    work.dy = form.decay.entering(from_state);
  }
  if (options.want_rest) {
    to_state = form.like(at::bmm(flat(form.v), flat(form.end_gradients).transpose(1, 2)));
    work.dx = form.decay.leaving(to_state);
  }
  if (options.want_gate) work.flow = form.flow(from_state, to_state);
  if (work.scores || work.dy.defined() || work.dx.defined()) form.decay.pairs(form.y, form.x, work);

  if (options.want_y) out.y = from_chunks(work.dy, layout);
  if (options.want_w) {
    const Tensor w = at::bmm(work.scores_out, flat(form.v)).baddbmm_(flat(form.entering), flat(form.starts));
    out.w = from_chunks(form.like(w), layout);
  }
  if (options.want_rest) {
    const Tensor v = at::bmm(work.scores_out.transpose(1, 2), flat(form.w));
    v.baddbmm_(flat(form.leaving), flat(form.end_gradients));
    out.x = from_chunks(work.dx, layout);
    out.v = from_chunks(form.like(v), layout);
    out.initial = form.start_gradient.clone();
    out.bonus = work.dbonus;
  }
  if (options.want_gate) out.g = from_chunks(in.g.dim() == 3 ? work.dg.squeeze(-1) : work.dg, layout);
  return out;
}

// The part of the inputs that is `length` tokens from `first` on, in a time that runs backwards if reversed.
FormInputs part_of(const FormInputs& in, const FormOptions& options, int64_t first, int64_t length) {
  const int64_t start = options.reverse ? in.x.size(1) - first - length : first;
  FormInputs part = in;
  for (Tensor* x : {&part.y, &part.x, &part.w, &part.v, &part.g, &part.beta}) {
    if (x->defined()) *x = x->narrow(1, start, length);
  }
  return part;
}

int64_t segment_length(const FormInputs& in, const FormOptions& options) {
  const int64_t a_token = in.x.size(0) * options.heads * std::max(in.x.size(3), in.v.size(3));
  return std::max<int64_t>(1, options.segment_elements / std::max<int64_t>(1, a_token * options.chunk)) * options.chunk;
}

// Joins the segments' results, given in the order of time.
FormOutputs join(const std::vector<FormOutputs>& parts) {
  FormOutputs all;
  for (Tensor FormOutputs::* member :
       {&FormOutputs::y, &FormOutputs::x, &FormOutputs::w, &FormOutputs::v, &FormOutputs::g, &FormOutputs::beta}) {
    Tensors pieces;
    for (const auto& part : parts) {
      if ((part.*member).defined()) pieces.push_back(part.*member);
    }
    if (!pieces.empty()) all.*member = at::cat(pieces, 1);
  }
  for (const auto& part : parts) {
    if (part.bonus.defined()) all.bonus = all.bonus.defined() ? all.bonus + part.bonus : part.bonus;
  }
  return all;
}

}  // namespace

int64_t chunk_length(int64_t tokens, int64_t largest) {
  return std::min<int64_t>(largest, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens))));
}

Tensor to_chunks(const Tensor& x, const Layout& layout, double filling) {
  if (!x.defined()) return x;
  const Tensor source = layout.reverse ? x.flip(1) : x;
  std::vector<int64_t> sizes{layout.chunks(), x.size(0), layout.heads, layout.chunk};
  if (x.dim() == 4) sizes.push_back(x.size(3));
  Tensor target = at::empty(sizes, x.options().dtype(layout.type));
  const Tensor grouped = target.unflatten(2, {x.size(2), layout.heads / x.size(2)});
  if (layout.full()) {
    grouped.narrow(0, 0, layout.full()).copy_(as_chunks(source, 0, layout.full(), layout.chunk).unsqueeze(3));
  }
  if (const int64_t tail = layout.tail()) {
    const Tensor last = grouped.narrow(0, layout.full(), 1);
    last.narrow(4, 0, tail).copy_(as_chunks(source, layout.full() * layout.chunk, 1, tail).unsqueeze(3));
    last.narrow(4, tail, layout.chunk - tail).fill_(filling);
  }
  return target;
}

Tensor from_chunks(const Tensor& x, const Layout& layout) {
  if (!x.defined()) return x;
  std::vector<int64_t> sizes{layout.batch, layout.tokens, layout.heads};
  if (x.dim() == 5) sizes.push_back(x.size(4));
  const Tensor target = at::empty(sizes, x.options());
  if (layout.full()) {
    as_chunks(target, 0, layout.full(), layout.chunk).copy_(x.narrow(0, 0, layout.full()));
  }
  if (const int64_t tail = layout.tail()) {
    as_chunks(target, layout.full() * layout.chunk, 1, tail).copy_(x.narrow(0, layout.full(), 1).narrow(3, 0, tail));
  }
  return layout.reverse ? target.flip(1) : target;
}

FormOutputs differentiate_form(const FormInputs& in, const FormOptions& options) {
  const int64_t tokens = in.x.size(1), length = segment_length(in, options);
  if (tokens <= length) return differentiate_segment(in, options);
  std::vector<FormInputs> segments;
  std::vector<FormOutputs> results;
  for (int64_t first = 0; first < tokens; first += length) {
    segments.push_back(part_of(in, options, first, std::min(length, tokens - first)));
  }
  // Forwards: what is wanted, or only the state at each segment's start when gradients have to come back from the end.
  FormOptions states_only = options;
  states_only.want_y = states_only.want_w = states_only.want_rest = states_only.want_gate = false;
  Tensor state = in.initial;
  for (auto& segment : segments) {
    segment.initial = state;
    if (options.want_rest && &segment == &segments.back()) break;
    auto result = differentiate_segment(segment, options.want_rest ? states_only : options);
    state = result.final_state;
    if (!options.want_rest) results.push_back(std::move(result));
  }
  Tensor gradient = in.final_grad;
  for (auto segment = segments.rbegin(); options.want_rest && segment != segments.rend(); ++segment) {
    segment->final_grad = gradient;
    results.push_back(differentiate_segment(*segment, options));
    gradient = results.back().initial;
  }
  if (options.want_rest) state = results.front().final_state;
  if (options.want_rest != options.reverse) std::reverse(results.begin(), results.end());  // into the order of time
  FormOutputs out = join(results);
  out.final_state = state;
  if (options.want_rest) out.initial = gradient;
  return out;
}

FormOutputs differentiate_sequences(const FormInputs& in, const FormOptions& options,
                                    const std::vector<int64_t>& bounds) {
  const auto run = [&](const Tensors& timed, const Tensors& rows) -> PackedResult {
    const auto out = differentiate_form(
        {timed[0], timed[1], timed[2], timed[3], timed[4], timed[5], in.bonus, rows[0], rows[1]}, options);
    return {{out.y, out.x, out.w, out.v, out.g, out.beta}, {out.bonus, out.initial, out.final_state}};
  };
  const auto joined =
      for_each_sequence(bounds, {in.y, in.x, in.w, in.v, in.g, in.beta}, {in.initial, in.final_grad}, run);
  const auto& t = joined.timed;
  const auto& r = joined.rows;
  return {t[0], t[1], t[2], t[3], t[4], t[5], r[0], r[1], r[2]};
}

}  // namespace cortado::gated
