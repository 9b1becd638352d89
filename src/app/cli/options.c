/* app/cli/options.c -- the table of commands and options, and everything read
 * off it to parse: values, environment names, spelling.
 *
 * Refuses: values with trailing junk or out of range, options that the command
 * has no use for, words it does not know.  Every refusal is one sentence. */
#include "app/cli/table.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- commands -------------------------------------------------------------- */

enum {
    RUN = 1 << 0,
    LOGITS = 1 << 1,
    TOKENIZE = 1 << 2,
    INSPECT = 1 << 3,
    EVAL = 1 << 4,
    VERSION = 1 << 5,
    BENCH = 1 << 6,
    SYNTH = 1 << 7,
    LIST = 1 << 8,
    COMPLETION = 1 << 9,
    TEMPLATE = 1 << 10,
    CHAT = 1 << 11,
    PLAN = 1 << 12,
    PACK = 1 << 13,
    VERIFY = 1 << 14,
    REPLAY = 1 << 15,
    SERVE = 1 << 16,
    TALKS = RUN | CHAT, /* commands that make replies */
    REPLIES = TALKS | SERVE, /* and for others */
    COMPUTES = TALKS | LOGITS | EVAL, /* commands that run the model on something given */
    SETTINGS = COMPUTES | BENCH | PLAN | SERVE, /* and that can be told how */
    WITH_MODEL = SETTINGS | TOKENIZE | INSPECT | TEMPLATE | VERIFY,
    WORKS = WITH_MODEL | SYNTH | LIST | PACK | REPLAY, /* commands with something to say besides their result */
    ALL = WORKS | COMPLETION | VERSION,
};

const mox_cli_command mox_cli_commands[] = {
    {"run", "one reply to a message", "moxie run [-m MODEL] -p TEXT | -f FILE | - | --messages FILE [options]", mox_cli_run,
     .bit = RUN, .takes_dash = true,
     .more = "The message goes through the model's chat template; --raw has a text continued as it is.  Thinking is "
             "dimmed in a terminal and left out elsewhere; a tool call is a line of JSON with name and arguments.\n"
             "For an answer after a tool call, give the whole conversation with --messages: a JSON array as the OpenAI "
             "API has it, in which the call is an assistant message with tool_calls and the result a message of role "
             "tool."},
    {"chat", "talk with a model", "moxie chat [-m MODEL] [options]", mox_cli_chat_command, .bit = CHAT,
     .more = "Lines that begin with a slash are commands; /help lists them.  A backslash at the end of a line continues "
             "the message, three quotes enclose several lines, and a paste is part of one message.  Ctrl-C ends a reply, "
             "Ctrl-D the chat.\n"
             "From a pipe every line is a message, and standard output has the replies alone.  What is typed is kept in "
             "$XDG_STATE_HOME/moxie/history, or else in ~/.local/state."},
    {"serve", "a server with the OpenAI and Anthropic APIs, and a chat for the browser", "moxie serve [-m MODEL] [options]", mox_cli_serve,
     .bit = SERVE,
     .more = "Clients of either vendor work with the address that is printed; docs/server.md has recipes.  The chat for the "
             "browser is at the address itself.\n"
             "Other machines reach it with --host 0.0.0.0, which needs --api-key, --api-key-file or, said aloud, --no-auth.\n"
             "SIGTERM and SIGINT let replies under way finish, for 30 seconds at most; a second signal ends at once.  SIGHUP "
             "opens the log file anew."},
    {"eval", "perplexity of a text, and how far two settings differ",
     "moxie eval [-m MODEL] -p TEXT | -f FILE | - [--against exact|default|fast] [options]", mox_cli_eval, .bit = EVAL,
     .takes_dash = true},
    {"list", "models that are on this machine", "moxie list [--names | --json]", mox_cli_models, .bit = LIST,
     .more = "The demo model, and what is in the Hugging Face cache: the name to give to -m, its commit, family, "
             "quantization, size on disk and state.  A name with @ is a commit that its main ref does not name.\n"
             "complete: what config.json and the index of the weights ask for is there.  incomplete: files are missing.  "
             "unsupported: not a model that moxie runs.  damaged: a file is not what it should be."},
    {"inspect", "what a model is made of", "moxie inspect [-m MODEL] [--json]", mox_cli_inspect, .bit = INSPECT},
    {"template", "messages to the prompt that a model gets",
     "moxie template [-m MODEL] --messages FILE [--tools FILE] [--kwargs JSON] [options]", mox_cli_template, .bit = TEMPLATE},
    {"tokenize", "text to token ids, and back",
     "moxie tokenize [-m MODEL] -p TEXT | -f FILE | - [--special] [--decode] [--json]", mox_cli_tokenize, .bit = TOKENIZE,
     .takes_dash = true},
    {"logits", "token ids to raw logits",
     "moxie logits [-m MODEL] --tokens FILE --out FILE [--chunk N | --step] [options]", mox_cli_logits, .bit = LOGITS},
    {"bench", "how fast a model runs here, beside what the machine could do",
     "moxie bench [-m MODEL | --synthetic NAME[:layers=N]] [options]", mox_cli_bench, .bit = BENCH,
     .more = "A row is one test: ppN reads a prompt of N random tokens, tgN generates N tokens one by one, xS in each of S sequences together, @D "
             "behind a prompt of D (whose cache is zeros: the time does not depend on what is in it).\n"
             "t/s: tokens per second, of all sequences, the median of the repetitions, and the least and the most of them.\n"
             "MB/tok: bytes that had to be read per token: weights that the token's batch used (of the experts, "
             "those it was routed to), cached positions and recurrent states, each once per batch (512 tokens, 2048 on a GPU). "
             " GB/s: that times t/s.  probe: what the same threads read from memory in the same seconds.\n"
             "MMAC/tok: multiply-adds per token.  GMAC/s: that times t/s.  peak: multiply-adds from registers in "
             "the same seconds, with the instruction of the kernel level, divided by the times that the precision "
             "needs it.\n"
             "With --experts stream also: hit, the experts that were in memory when they were asked for, in percent; "
             "disk MB/tok and GB/s, what was read and how fast while the test ran; probe, how fast the disk was beside it; read "
             "and dense, milliseconds per token that reading at the probe's rate and computing all but the experts take; "
             "wait, those in which there was nothing to compute until a read ended; slots of the expert cache that are in "
             "use; GB memory, what the process has for itself at the end of the test.\n"
             "With --vram, when experts come and go on the GPU: GPU, the experts that were there, in percent; copy MB/tok and GB/s, "
             "what was copied there; wait, milliseconds per token in which the GPU had nothing to compute until a copy ended; its "
             "slots.  What is said about reading is then about the experts that were not there.  With --cpu-experts most "
             "of those are computed by the processor, and the others are copied.\n"
             "The % columns are GB/s and GMAC/s in percent of the probes: generation is limited by the first, long "
             "prompts by the second.  Behind wait it is read and dense together in percent of the time taken.  With --experts "
             "stream memory and arithmetic are probed once, at the beginning.\n"
             "A terminal that is too narrow for the table gets it without some columns, first those of least and most, "
             "MMAC/tok and MB/tok."},
    {"plan", "what would go where in memory, whether it fits, and how fast that could be",
     "moxie plan [-m MODEL | --synthetic NAME[:layers=N]] [--ram SIZE] [-c N] [options]", mox_cli_plan, .bit = PLAN,
     .more = "Nothing is loaded: a synthetic model is planned for by its shape alone.  When it does not fit, the exit status is "
             "4 and the smallest budget that does is named.\n"
             "Speeds are estimated from short measurements of this machine's kernels, with reads from disk that overlap "
             "computing in part.  Without --disk the disk of the model's files is measured, once for each disk, which takes "
             "two seconds.  alike: every expert is asked for as often as any other, the worst case for a cache.  zipf: the "
             "i-th most popular one of a layer 1/i times as often as the first."},
    {"synth", "a random checkpoint in the shape of a real model, for benchmarks",
     "moxie synth NAME[:layers=N] DIR [--seed N] [--skew X]", mox_cli_synth, .bit = SYNTH,
     .takes_words = 2, .words = {MEANS_SHAPE, MEANS_FOLDER},
     .more = "NAME is qwen3-30b-a3b, qwen3-235b-a22b, qwen3-next-80b-a3b, qwen3.5-35b-a3b, qwen3.5-397b-a17b or "
             "deepseek-v3, in any case; :layers=N keeps the first N layers.  DIR is made, or empty.  Weights are "
             "as a 4-bit MLX conversion has them; there is no tokenizer."},
    {"replay", "which expert cache a recorded run would have needed",
     "moxie replay FILE [--policy NAME] [--slots LIST] [--json]", mox_cli_replay, .bit = REPLAY, .takes_words = 1,
     .words = {MEANS_FILE},
     .more = "FILE was written with --trace.  A row is one cache: how many slots it has, and how many percent of all "
             "experts that is; hit, the requests in percent that it would have had in memory; disk MB/tok, what it would "
             "have read per token.\n"
             "lfu: the expert that was used least often gives way, old uses counting less.  lru: the one that was used "
             "longest ago.  2q: like lru, but an expert has to be asked for again soon after it had to go before it can "
             "drive out others.  belady knows the future: what it has is what there is to gain.\n"
             "First the recorded run itself is replayed: exit code 1 when its hits and misses do not come out."},
    {"pack", "a copy of a model with each expert in one piece", "moxie pack MODEL DIR", mox_cli_pack, .bit = PACK, .takes_words = 2,
     .words = {MEANS_MODEL, MEANS_FOLDER},
     .more = "MODEL is what -m takes elsewhere.  DIR is made, or empty; the packed model there is used like any other, and "
             "gives the same numbers.  The bytes of each routed expert lie side by side and at multiples of 4096, so that one "
             "read brings an expert; moxie.pack.json has checksums of everything, for `moxie verify`.\n"
             "Files that hold no experts are hard links where the file system can, the rest is written anew: there must be "
             "about as much room as the model takes.  If it is interrupted, the same command goes on after the last complete "
             "file."},
    {"verify", "reads every byte of a model and says what is wrong with it", "moxie verify [-m MODEL] [--json]", mox_cli_verify,
     .bit = VERIFY,
     .more = "Compares checksums where there are any: of packed models, and of files in the Hugging Face cache that are named "
             "by their SHA-256.  Looks for numbers that are not finite in all tensors, and for scales that are all zero.\n"
             "One line for each finding, with the file, the tensor and what to do.  The exit code is 3 when there is a "
             "problem; a warning is no problem."},
    {"completion", "completions for a shell, and the manual page", "moxie completion bash|zsh|fish|man", mox_cli_completion,
     .bit = COMPLETION, .takes_words = 1, .words = {MEANS_SCRIPT},
     .more = "bash: eval \"$(moxie completion bash)\" in ~/.bashrc.\n"
             "zsh: moxie completion zsh > ~/.zfunc/_moxie, in a folder of fpath.\n"
             "fish: moxie completion fish > ~/.config/fish/completions/moxie.fish.\n"
             "man: moxie completion man | man -l -"},
    {"version", "version, build and libraries", "moxie version", mox_cli_version, .bit = VERSION},
    {0},
};

const mox_cli_command *mox_cli_find_command(const char *name)
{
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* ---- options --------------------------------------------------------------- */

const option_def mox_cli_table[N_OPTIONS] = {
    [OPT_MODEL] = {"model", 'm', KIND_TEXT, "MODEL", .commands = WITH_MODEL,
                   .means = MEANS_MODEL,
                   .help = "folder of the model, or ORG/NAME[@REVISION] in the Hugging Face cache (default: the demo model "
                           "that comes with moxie)"},
    [OPT_PROMPT] = {"prompt", 'p', KIND_TEXT, "TEXT", .commands = RUN | TOKENIZE | EVAL, .help = "the text"},
    [OPT_FILE] = {"file", 'f', KIND_TEXT, "FILE", .commands = RUN | TOKENIZE | EVAL, .means = MEANS_FILE,
                  .help = "file with the text; - is standard input, which is also read when it is a pipe"},
    [OPT_TOKENS] = {"tokens", 0, KIND_TEXT, "FILE", .commands = LOGITS, .means = MEANS_FILE,
                    .help = "file of decimal token ids between blanks; - is standard input"},
    [OPT_OUT] = {"out", 0, KIND_TEXT, "FILE", .commands = LOGITS, .means = MEANS_FILE,
                 .help = "float32 little-endian logits [tokens, vocabulary] go here; - is standard output"},
    [OPT_SYSTEM] = {"system", 's', KIND_TEXT, "TEXT", .commands = TALKS, .help = "the system prompt"},
    [OPT_MESSAGES] = {"messages", 0, KIND_TEXT, "FILE", .commands = RUN | TEMPLATE,
                      .means = MEANS_FILE, .help = "the conversation as a JSON array of messages with role and content; - is standard input"},
    [OPT_TOOLS] = {"tools", 0, KIND_TEXT, "FILE", .commands = TALKS | TEMPLATE,
                   .means = MEANS_FILE, .help = "a JSON array of the functions that the model may call"},
    [OPT_THINK] = {"think", 0, KIND_SWITCH, .commands = REPLIES, .help = "have the model think before it answers"},
    [OPT_NO_THINK] = {"no-think", 0, KIND_SWITCH, .commands = REPLIES,
                      .help = "have it answer at once (default for both: what its template does)"},
    [OPT_THINK_BUDGET] = {"think-budget", 0, KIND_NUMBER, "N", 0, 1e9, true, .commands = REPLIES,
                          .help = "end the thinking after N tokens (default: when the model does)"},
    [OPT_STOP] = {"stop", 0, KIND_TEXTS, "TEXT", .commands = TALKS,
                  .help = "end the reply before this text; may be given several times"},
    [OPT_JSON_SCHEMA] = {"json-schema", 0, KIND_TEXT, "FILE", .commands = RUN, .means = MEANS_FILE,
                         .help = "hold the reply to JSON that this schema describes; with --tools, to that or to calls"},
    [OPT_GRAMMAR] = {"grammar", 0, KIND_TEXT, "FILE", .commands = RUN, .means = MEANS_FILE,
                     .help = "hold the reply to this grammar (GBNF)"},
    [OPT_TEMPLATE] = {"template", 0, KIND_TEXT, "FILE", .commands = REPLIES | TEMPLATE,
                      .means = MEANS_FILE, .help = "chat template (Jinja) instead of the model's own"},
    [OPT_KWARGS] = {"kwargs", 0, KIND_TEXT, "JSON", .commands = TALKS | TEMPLATE,
                    .help = "more variables for the template, as a JSON object"},
    [OPT_NO_GENERATION_PROMPT] = {"no-generation-prompt", 0, KIND_SWITCH, .commands = TEMPLATE,
                                  .help = "end after the last message instead of where the reply begins"},
    [OPT_NOW] = {"now", 0, KIND_TEXT, "DATE", .commands = TEMPLATE,
                 .help = "what the template takes for the present, such as 2026-02-14 (default: now)"},
    [OPT_TEMPLATE_TOKENS] = {"tokens", 0, KIND_SWITCH, .commands = TEMPLATE, .help = "print token ids instead of text"},
    [OPT_RAW] = {"raw", 0, KIND_SWITCH, .commands = RUN,
                 .help = "give the text to the model as it is, without a chat template"},
    [OPT_SPECIAL] = {"special", 0, KIND_SWITCH, .commands = RUN | TOKENIZE | EVAL,
                     .help = "recognise special tokens written in the text"},
    [OPT_DECODE] = {"decode", 0, KIND_SWITCH, .commands = TOKENIZE,
                    .help = "the other way: token ids (between blanks, or a JSON array) to text"},
    [OPT_MAX_TOKENS] = {"max-tokens", 'n', KIND_NUMBER, "N", 0, 1e9, .commands = REPLIES,
                        .help = "stop after N tokens (default: when the context is full)"},
    [OPT_TEMP] = {"temp", 0, KIND_REAL, "X", 0, 100, .commands = REPLIES,
                  .help = "temperature; 0 always takes the likeliest token (default: the model's)"},
    [OPT_TOP_K] = {"top-k", 0, KIND_NUMBER, "N", 0, 1e9, .commands = REPLIES,
                   .help = "choose among the N likeliest tokens; 0 is off (default: the model's)"},
    [OPT_TOP_P] = {"top-p", 0, KIND_REAL, "X", 0, 1, .commands = REPLIES,
                   .help = "choose among the likeliest tokens that hold X of the probability; 0 and 1 are off "
                           "(default: the model's)"},
    [OPT_MIN_P] = {"min-p", 0, KIND_REAL, "X", 0, 1, .commands = REPLIES,
                   .help = "drop tokens less likely than X times the likeliest; 0 is off (default: the model's)"},
    [OPT_SEED] = {"seed", 0, KIND_NUMBER, "N", 0, 9007199254740992.0, .commands = REPLIES,
                  .help = "start of the random numbers (default: a new one each time; run --json names it)"},
    [OPT_REPEAT_PENALTY] = {"repeat-penalty", 0, KIND_REAL, "X", 0.1, 10, .commands = REPLIES,
                            .help = "make the last 64 tokens less likely; 1 is off (default: the model's)"},
    [OPT_PRESENCE_PENALTY] = {"presence-penalty", 0, KIND_REAL, "X", -100, 100, .fallback = "0", .commands = REPLIES,
                              .help = "lower the logits of the last 64 tokens by X, once each"},
    [OPT_FREQUENCY_PENALTY] = {"frequency-penalty", 0, KIND_REAL, "X", -100, 100, .fallback = "0", .commands = REPLIES,
                               .help = "lower them by X for each time they occurred"},
    [OPT_CHUNK] = {"chunk", 0, KIND_NUMBER, "N", 1, 1e9, true, .commands = LOGITS,
                   .help = "give the model N tokens at a time (default: all at once)"},
    [OPT_STEP] = {"step", 0, KIND_SWITCH, .commands = LOGITS, .help = "give the model one token at a time"},
    [OPT_AGAINST] = {"against", 0, KIND_CHOICE, "exact|default|fast", .commands = EVAL,
                     .help = "also run with this setting, and report how far the two differ"},
    [OPT_SYNTHETIC] = {"synthetic", 0, KIND_TEXT, "NAME", .commands = BENCH | PLAN, .means = MEANS_SHAPE,
                       .help = "instead of -m: a random model of that shape; `moxie synth --help` has the names"},
    [OPT_PREFILL] = {"prefill", 'p', KIND_LIST, "LIST", 0, 1e6, true, "32,128,512,2048", .commands = BENCH,
                     .help = "lengths of prompts; 0 for none"},
    [OPT_GENERATE] = {"generate", 'n', KIND_NUMBER, "N", 0, 1e6, .fallback = "16", .commands = BENCH,
                      .help = "tokens to generate per measurement; 0 for none"},
    [OPT_DEPTHS] = {"depth", 'd', KIND_LIST, "LIST", 0, 1e9, true, "0,4k,32k", .commands = BENCH,
                    .help = "tokens in front of the generated ones"},
    [OPT_STREAMS] = {"streams", 0, KIND_LIST, "LIST", 1, 256, .fallback = "1", .commands = BENCH,
                     .help = "sequences that generate together"},
    [OPT_THREAD_COUNTS] = {"threads", 't', KIND_LIST, "LIST", 1, 1024, .commands = BENCH,
                           .help = "numbers of threads (default: 1, and one for each core)"},
    [OPT_REPEAT] = {"repeat", 'r', KIND_NUMBER, "N", 1, 10000, .fallback = "10", .commands = BENCH,
                    .help = "measurements per row"},
    [OPT_OUTPUT] = {"output", 'o', KIND_CHOICE, "table|csv|json", .fallback = "table", .commands = BENCH,
                    .help = "what to print"},
    [OPT_SYNTH_SEED] = {"seed", 0, KIND_NUMBER, "N", 0, 9007199254740992.0, .fallback = "0", .commands = SYNTH | BENCH,
                        .help = "start of the random numbers"},
    [OPT_SKEW] = {"skew", 0, KIND_REAL, "X", 0, 8, .fallback = "0", .commands = SYNTH | BENCH,
                  .help = "how unevenly a synthetic router chooses: the exponent of a Zipf law; 0: all experts alike"},
    [OPT_CONTEXT] = {"ctx", 'c', KIND_NUMBER, "N", 1, 1e9, true, .commands = COMPUTES | PLAN | SERVE,
                     .help = "tokens the context holds; 32k is 32768 (default: what the model was made for, at most "
                             "4096, or 32768 with serve as far as that fits)"},
    [OPT_KV_TYPE] = {"kv-type", 0, KIND_CHOICE, "f32|f16|q8", .commands = SETTINGS,
                     .help = "numbers in the attention cache; q8 takes about half the memory of f16 and is less "
                             "exact (default: f16, with --exact f32)"},
    [OPT_FAST] = {"fast", 0, KIND_SWITCH, .commands = SETTINGS,
                  .help = "8-bit activations: faster, less exact (eval --against exact says how much)"},
    [OPT_EXACT] = {"exact", 0, KIND_SWITCH, .commands = SETTINGS,
                   .help = "compute with 32-bit numbers everywhere"},
    [OPT_DETERMINISTIC] = {"deterministic", 0, KIND_SWITCH, .commands = SETTINGS,
                           .help = "the same kernels for prompts, replies and requests that run together: slower"},
    [OPT_DEVICE] = {"device", 0, KIND_CHOICE, "cpu|emu|cuda|metal", .fallback = "cpu", .commands = SETTINGS, .numbered = true,
                    .help = "what computes; cuda takes as few GPUs as the model fits on, cuda:1 the one of that number, cuda:0,1 "
                            "spreads the layers over those; where there is no GPU, the cpu computes"},
    [OPT_ISA] = {"isa", 0, KIND_TEXT, "NAME", .commands = SETTINGS, .means = MEANS_LEVEL,
                 .help = "kernel level, as `moxie version` lists them (default: the best there is)"},
    [OPT_THREADS] = {"threads", 't', KIND_NUMBER, "N", 1, 1024, .commands = COMPUTES | PLAN | SERVE,
                     .help = "threads (default: one for each core that the process may use)"},
    [OPT_PIN] = {"pin", 0, KIND_SWITCH, .commands = SETTINGS, .help = "keep each thread on one processor"},
    [OPT_WEIGHTS] = {"weights", 0, KIND_CHOICE, "map|copy", .fallback = "map", .commands = SETTINGS,
                     .help = "use weights where the system keeps their files, or copy them in the background to memory on "
                             "huge pages: as much memory again, and faster where files are in small pages (bench says)"},
    [OPT_NAMES] = {"names", 0, KIND_SWITCH, .commands = LIST, .help = "print names only, one to a line, of what is there"},
    [OPT_RAM] = {"ram", 0, KIND_BYTES, "SIZE", 0x1p20, 0x1p53, .commands = SETTINGS,
                 .help = "memory that the program may take, such as 12G, 1.5G or 512M, where G is 2^30 bytes (default: 80 % of "
                         "what is available)"},
    [OPT_VRAM] = {"vram", 0, KIND_BYTES, "SIZE", 0x1p20, 0x1p53, .commands = SETTINGS,
                  .help = "memory that the program may take of each GPU that --device numbers (of one that is named twice, twice as much), or of one, its driver included, such as 6G; "
                          "experts that do not fit come and go (default: all of it, for all weights)"},
    [OPT_CPU_EXPERTS] = {"cpu-experts", 0, KIND_SWITCH, .commands = SETTINGS,
                         .help = "with --vram: while tokens are generated, the processor computes most of the experts that are not on "
                                 "the GPU, while the others are copied there (gives slightly other numbers)"},
    [OPT_DISK] = {"disk", 0, KIND_REAL, "GB/S", 0.001, 1000, .commands = PLAN,
                  .help = "how fast experts are read from disk, in 10^9 bytes per second (default: measured; for a synthetic "
                          "model unknown)"},
    [OPT_EXPERTS] = {"experts", 0, KIND_CHOICE, "auto|resident|stream|mmap", .fallback = "auto", .commands = SETTINGS,
                     .help = "where routed experts are: in memory with all other weights, read from disk as they are "
                             "needed, or mapped and left to the system"},
    [OPT_EXPERT_SLOTS] = {"expert-slots", 0, KIND_NUMBER, "N", 1, 1e9, .commands = SETTINGS,
                          .help = "slots of the expert cache, with --experts stream (default: what --ram leaves)"},
    [OPT_EXPERT_POLICY] = {"expert-policy", 0, KIND_CHOICE, "lfu|lru|2q", .fallback = "lfu", .commands = SETTINGS,
                           .help = "which expert gives way to another, with --experts stream; `moxie replay` compares them"},
    [OPT_READERS] = {"readers", 0, KIND_NUMBER, "N", 1, 256, .commands = SETTINGS,
                     .help = "threads that read from disk, with --experts stream (default: what a short measurement of the disk, "
                             "made once, finds best, which may be io_uring)"},
    [OPT_PREFETCH] = {"prefetch", 0, KIND_CHOICE, "auto|off", .fallback = "auto", .commands = SETTINGS,
                      .help = "read experts before their layer comes, or copy them to the GPU, while that pays, with --experts stream or "
                              "--vram"},
    [OPT_TRACE] = {"trace", 0, KIND_TEXT, "FILE", .commands = COMPUTES | BENCH, .means = MEANS_FILE,
                   .help = "write down which experts were asked for, for `moxie replay`"},
    [OPT_POLICY] = {"policy", 0, KIND_CHOICE, "all|lfu|lru|2q|belady", .fallback = "all", .commands = REPLAY,
                    .help = "who gives way"},
    [OPT_SLOTS] = {"slots", 0, KIND_LIST, "LIST", 1, 1e9, true, .commands = REPLAY,
                   .help = "sizes of the cache (default: the recorded one, and 10, 25, 50 and 75 % of all experts)"},
    [OPT_HOST] = {"host", 0, KIND_TEXT, "ADDRESS", .fallback = "127.0.0.1", .commands = SERVE, .help = "where to listen; a name or an address"},
    [OPT_PORT] = {"port", 0, KIND_NUMBER, "N", 0, 65535, .fallback = "8080", .commands = SERVE, .help = "port; 0 takes a free one, which is printed"},
    [OPT_UNIX_SOCKET] = {"unix-socket", 0, KIND_TEXT, "PATH", .commands = SERVE, .means = MEANS_FILE,
                         .help = "listen at this path instead of an address"},
    [OPT_API_KEY] = {"api-key", 0, KIND_TEXTS, "KEY", .commands = SERVE,
                     .help = "a key that requests must show; may be given several times (others on this machine can read command lines: better "
                             "MOXIE_API_KEY or --api-key-file)"},
    [OPT_API_KEY_FILE] = {"api-key-file", 0, KIND_TEXT, "FILE", .commands = SERVE, .means = MEANS_FILE, .help = "keys, one to a line"},
    [OPT_NO_AUTH] = {"no-auth", 0, KIND_SWITCH, .commands = SERVE, .help = "let everybody who reaches the address use it without a key"},
    [OPT_CORS_ORIGIN] = {"cors-origin", 0, KIND_TEXTS, "ORIGIN", .commands = SERVE,
                         .help = "let web pages of this origin use it, such as https://chat.example.org; * for all; may be given several times "
                                 "(default: its own pages and those of localhost)"},
    [OPT_ALLOW_HOST] = {"allow-host", 0, KIND_TEXTS, "NAME", .commands = SERVE,
                        .help = "a name that requests may call this server by, besides localhost and addresses; may be given several times"},
    [OPT_PARALLEL] = {"parallel", 0, KIND_NUMBER, "N", 1, 256, .fallback = "4", .commands = SERVE, .help = "requests that run at once"},
    [OPT_QUEUE] = {"queue", 0, KIND_NUMBER, "N", 1, 4096, .fallback = "32", .commands = SERVE,
                   .help = "requests that may wait; more are answered with 429"},
    [OPT_BODY_LIMIT] = {"body-limit", 0, KIND_BYTES, "SIZE", 1024, 0x1p30, .fallback = "32M", .commands = SERVE, .help = "the largest request"},
    [OPT_PREFIX_CACHE] = {"prefix-cache", 0, KIND_BYTES, "SIZE", 0, 0x1p53, .fallback = "256M", .commands = SERVE,
                          .help = "memory for what finished requests leave behind for those that begin alike; 0M for none"},
    [OPT_STATE_DIR] = {"state-dir", 0, KIND_TEXT, "FOLDER", .commands = SERVE, .means = MEANS_FOLDER,
                       .help = "keep states of long prompts here, across restarts"},
    [OPT_LOG_FILE] = {"log-file", 0, KIND_TEXT, "FILE", .commands = SERVE, .means = MEANS_FILE,
                      .help = "one line for each request goes here (default: standard error)"},
    [OPT_LOG_JSON] = {"log-json", 0, KIND_SWITCH, .commands = SERVE, .help = "lines of the log are JSON objects"},
    [OPT_JSON] = {"json", 0, KIND_SWITCH, .commands = RUN | TOKENIZE | INSPECT | EVAL | LIST | PLAN | VERIFY | REPLAY,
                  .help = "print one JSON object instead of text"},
    [OPT_QUIET] = {"quiet", 'q', KIND_SWITCH, .commands = WORKS,
                   .help = "no statistics, progress or warnings"},
    [OPT_COLOR] = {"color", 0, KIND_CHOICE, "auto|on|off", .fallback = "auto", .commands = WORKS,
                   .help = "colour; auto is on in a terminal unless NO_COLOR is set"},
    [OPT_HELP] = {"help", 'h', KIND_SWITCH, .commands = ALL, .help = "show this"},
    [OPT_VERSION] = {"version", 0, KIND_SWITCH, .commands = ALL, .help = "show the version"},
};

const char *mox_cli_option_name(option_id id) { return mox_cli_table[id].name; }

/* ---- values ---------------------------------------------------------------- */

/* Reads a number and moves *text behind it. */
static bool read_number(const option_def *d, const char **text, int64_t *out)
{
    if (!isdigit((unsigned char)(*text)[(*text)[0] == '-'])) return false; /* strtoll would skip blanks */
    char *end;
    errno = 0;
    long long n = strtoll(*text, &end, 10);
    if (errno != 0) return false;
    if (d->thousands && (*end == 'k' || *end == 'K')) {
        if (__builtin_mul_overflow(n, 1024LL, &n)) return false;
        end++;
    }
    *out = n;
    *text = end;
    return (double)n >= d->low && (double)n <= d->high;
}

static bool parse_number(const option_def *d, const char *text, int64_t *out)
{
    return read_number(d, &text, out) && *text == '\0';
}

/* How many numbers; 0 when it is no list.  out may be NULL. */
static int parse_list(const option_def *d, const char *text, int64_t *out)
{
    for (int n = 0; n < MOX_CLI_LIST; text++) {
        int64_t x;
        if (!read_number(d, &text, &x)) return 0;
        if (out) out[n] = x;
        n++;
        if (*text == '\0') return n;
        if (*text != ',') return 0;
    }
    return 0;
}

int mox_cli_list(const mox_cli_options *o, option_id id, int64_t out[MOX_CLI_LIST])
{
    return o->v[id].source == FROM_NOWHERE ? 0 : parse_list(&mox_cli_table[id], o->v[id].text, out);
}

static bool parse_real(const option_def *d, const char *text, double *out)
{
    for (const char *p = text; *p; p++) /* keeps out blanks, hexadecimal, inf and nan */
        if (!isdigit((unsigned char)*p) && !strchr("+-.eE", *p)) return false;
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out >= d->low && *out <= d->high;
}

/* A number with a unit.  Digits are added up in whole numbers, so that what mox_cli_size
 * has written is read back as at least as much. */
static bool parse_bytes(const option_def *d, const char *text, int64_t *out)
{
    static const char units[] = "KMGT";
    enum { MOST_DIGITS = 12 };
    double digits = 0.0, scale = 1.0;
    int n = 0;
    bool point = false;
    for (; isdigit((unsigned char)*text) || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        digits = 10.0 * digits + (*text - '0');
        if (point) scale *= 10.0;
        if (++n > MOST_DIGITS) return false;
    }
    const char *unit = *text ? strchr(units, toupper((unsigned char)*text)) : NULL;
    if (n == 0 || !unit || text[1] != '\0') return false;
    const double bytes = ldexp(digits, 10 * (int)(unit - units + 1)) / scale;
    if (bytes < d->low || bytes > d->high) return false;
    *out = (int64_t)ceil(bytes);
    return true;
}

static bool is_choice(const option_def *d, const char *text)
{
    const size_t n = d->numbered ? strcspn(text, ":") : strlen(text);
    for (const char *p = d->value; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (n > 0 && strncmp(p, text, n) == 0 && (p[n] == '|' || p[n] == '\0')) return true;
    return false;
}

/* A limit of sizes, as a size is given. */
static const char *show_bytes(double bytes, char out[MOX_CLI_NAME])
{
    int unit = bytes > 0.0 ? 0 : 2;
    for (; unit < 4 && bytes > 0.0 && fmod(bytes, 1024.0) == 0.0; unit++) bytes /= 1024.0;
    (void)snprintf(out, MOX_CLI_NAME, "%.0f%.1s", bytes, &" KMGT"[unit]);
    return out;
}

/* shown is how the user named the option: "-n", "--max-tokens", "MOXIE_MAX_TOKENS". */
static bool set_value(mox_cli_options *o, int id, const char *shown, const char *text, option_source source)
{
    const option_def *d = &mox_cli_table[id];
    option_value *v = &o->v[id];
    char low[MOX_CLI_NAME], high[MOX_CLI_NAME];
    if (source > v->source) v->n_texts = 0; /* what a flag says replaces what the environment says */
    v->source = source;
    v->text = text;
    switch (d->kind) {
    case KIND_SWITCH: v->on = true; return true;
    case KIND_TEXT: return true;
    case KIND_TEXTS:
        if (v->n_texts < MOX_CLI_LIST) {
            v->texts[v->n_texts++] = text;
            return true;
        }
        mox_cli_say("%s can be given %d times, not more", shown, MOX_CLI_LIST);
        return false;
    case KIND_CHOICE:
        if (is_choice(d, text)) return true;
        mox_cli_say("%s takes %s, not '%s'", shown, d->value, text);
        return false;
    case KIND_NUMBER:
        if (parse_number(d, text, &v->number)) return true;
        mox_cli_say("%s takes a whole number from %.0f to %.0f, not '%s'", shown, d->low, d->high, text);
        return false;
    case KIND_BYTES:
        if (parse_bytes(d, text, &v->number)) return true;
        mox_cli_say("%s takes a size from %s to %s, such as 512M or 0.5G, not '%s'", shown, show_bytes(d->low, low),
                    show_bytes(d->high, high), text);
        return false;
    case KIND_LIST:
        if (parse_list(d, text, NULL) > 0) return true;
        mox_cli_say("%s takes up to %d whole numbers from %.0f to %.0f between commas, not '%s'", shown, MOX_CLI_LIST, d->low,
                    d->high, text);
        return false;
    case KIND_REAL:
        if (parse_real(d, text, &v->real)) return true;
        mox_cli_say("%s takes a number from %g to %g, not '%s'", shown, d->low, d->high, text);
        return false;
    }
    return false;
}

bool mox_cli_set(mox_cli_options *o, option_id id, const char *text)
{
    const option_value before = o->v[id];
    if (set_value(o, (int)id, mox_cli_table[id].name, text, FROM_FLAG)) return true;
    o->v[id] = before;
    return false;
}

void mox_cli_unset(mox_cli_options *o, option_id id)
{
    o->v[id] = (option_value){0};
    if (mox_cli_table[id].fallback) (void)set_value(o, (int)id, mox_cli_table[id].name, mox_cli_table[id].fallback, FROM_DEFAULT);
}

/* ---- environment ----------------------------------------------------------- */

void mox_cli_environment_name(const option_def *d, char out[MOX_CLI_NAME])
{
    size_t n = (size_t)snprintf(out, MOX_CLI_NAME, "MOXIE_%s", d->name);
    for (size_t i = 0; i < n; i++) out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static bool set_switch_by_environment(mox_cli_options *o, int id, const char *name, const char *text)
{
    const bool on = strcmp(text, "1") == 0;
    if (!on && strcmp(text, "0") != 0) {
        mox_cli_say("%s takes 0 or 1, not '%s'", name, text);
        return false;
    }
    o->v[id] = (option_value){.source = on ? FROM_ENVIRONMENT : FROM_DEFAULT, .on = on};
    return true;
}

static bool read_environment(mox_cli_options *o, const mox_cli_command *c)
{
    for (int id = 0; id < N_OPTIONS; id++) {
        const option_def *d = &mox_cli_table[id];
        if (!mox_cli_takes(c, d) || id == OPT_HELP || id == OPT_VERSION) continue;
        if (d->fallback && !set_value(o, id, d->name, d->fallback, FROM_DEFAULT)) return false;
        char name[MOX_CLI_NAME];
        mox_cli_environment_name(d, name);
        const char *text = getenv(name);
        if (!text || !*text) continue;
        if (d->kind == KIND_SWITCH ? !set_switch_by_environment(o, id, name, text)
                                   : !set_value(o, id, name, text, FROM_ENVIRONMENT))
            return false;
    }
    return true;
}

/* ---- spelling -------------------------------------------------------------- */

/* Edits between two words; words longer than the row are as far as can be. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MOX_CLI_NAME];
    const size_t n = strlen(a), m = strlen(b);
    if (n >= MOX_CLI_NAME || m >= MOX_CLI_NAME) return MOX_CLI_NAME;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            const size_t replace = corner + (a[i - 1] != b[j - 1]);
            const size_t shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            corner = row[j];
            row[j] = replace < shift ? replace : shift;
        }
    }
    return row[m];
}

const char *mox_cli_nearest(const char *word, const char *const *list)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2; /* farther than this is another word */
    for (; *list; list++) {
        const size_t d = distance(word, *list);
        if (d < least) {
            least = d;
            best = *list;
        }
    }
    return best;
}

static void unknown_option(const mox_cli_command *c, const char *word)
{
    const char *names[N_OPTIONS + 1];
    int n = 0;
    for (int id = 0; id < N_OPTIONS; id++)
        if (mox_cli_takes(c, &mox_cli_table[id])) names[n++] = mox_cli_table[id].name;
    names[n] = NULL;
    const char *near = word[1] == '-' ? mox_cli_nearest(word + 2, names) : NULL;
    if (near) mox_cli_say("%s has no option %s; did you mean --%s?", c->name, word, near);
    else mox_cli_say("%s has no option %s; `moxie %s --help` lists them", c->name, word, c->name);
}

/* ---- the command line ------------------------------------------------------ */

static int find_long(const mox_cli_command *c, const char *name, size_t n)
{
    for (int id = 0; id < N_OPTIONS; id++) {
        const option_def *d = &mox_cli_table[id];
        if (mox_cli_takes(c, d) && strlen(d->name) == n && memcmp(d->name, name, n) == 0) return id;
    }
    return -1;
}

static int find_letter(const mox_cli_command *c, char letter)
{
    for (int id = 0; id < N_OPTIONS; id++)
        if (mox_cli_takes(c, &mox_cli_table[id]) && mox_cli_table[id].letter == letter) return id;
    return -1;
}

/* Reads the option at argv[0] and returns the number of words it took, 0 on error.
 * A value follows as the next word, after "=", or right behind a letter. */
static int parse_option(mox_cli_options *o, const mox_cli_command *c, int argc, char **argv)
{
    char shown[MOX_CLI_NAME];
    const char *word = argv[0], *inside = NULL;
    const bool is_long = word[1] == '-';
    const size_t n = is_long ? strcspn(word, "=") : 2;
    (void)snprintf(shown, sizeof shown, "%.*s", (int)n, word);
    if (word[n] != '\0') inside = word + n + (is_long || word[n] == '=');
    const int id = n >= sizeof shown ? -1 : is_long ? find_long(c, word + 2, n - 2) : find_letter(c, word[1]);
    if (id < 0) {
        unknown_option(c, shown);
        return 0;
    }
    if (mox_cli_table[id].kind == KIND_SWITCH) {
        if (inside) {
            mox_cli_say("%s takes no value, but '%s' follows it", shown, inside);
            return 0;
        }
        return set_value(o, id, shown, NULL, FROM_FLAG);
    }
    if (!inside && argc < 2) {
        mox_cli_say("%s needs a value: %s %s", shown, shown, mox_cli_table[id].value);
        return 0;
    }
    if (!set_value(o, id, shown, inside ? inside : argv[1], FROM_FLAG)) return 0;
    return inside ? 1 : 2;
}

bool mox_cli_parse(mox_cli_options *o, const mox_cli_command *c, int argc, char **argv)
{
    *o = (mox_cli_options){0};
    if (!read_environment(o, c)) return false;
    bool options = true;
    for (int i = 0; i < argc;) {
        const char *word = argv[i];
        if (options && strcmp(word, "--") == 0) {
            options = false;
            i++;
        } else if (options && word[0] == '-' && word[1] != '\0') {
            const int n = parse_option(o, c, argc - i, argv + i);
            if (n == 0) return false;
            i += n;
        } else if (c->takes_dash && strcmp(word, "-") == 0) {
            o->dash = true;
            i++;
        } else if (o->n_words < c->takes_words) {
            o->words[o->n_words++] = word;
            i++;
        } else {
            mox_cli_say("%s takes no argument '%s'%s", c->name, word,
                        c->takes_dash ? "; a text is given with -p" : "");
            return false;
        }
    }
    if (o->n_words == c->takes_words || o->v[OPT_HELP].on || o->v[OPT_VERSION].on) return true;
    mox_cli_say("usage: %s", c->usage);
    return false;
}
