"""
Copies of a recording, from its samples
=======================================

Before there are embeddings there are recordings. This page makes the copies of one recording that training is often fed
with, measures what the channels did to them, and writes down what a model with two levels needs to know: that
all of them are of one session.
"""

# %%
# A recording
# -----------
# The recording is synthetic: a buzz through resonances, in syllables, between two stretches of quiet. It has the rhythm
# and the rough spectrum of speech, which is enough for this page.

import matplotlib.pyplot as plt
import numpy as np

from duoplda.audio import KINDS, Channels, EnergyDetector, measure_quality

RATE = 16_000
rng = np.random.default_rng(0)
seconds = np.arange(4 * RATE) / RATE
pitch = 120 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * seconds))
buzz = ((np.cumsum(pitch) / RATE) % 1 < 0.1) + 0.05 * rng.normal(size=len(seconds))
frequency = np.fft.rfftfreq(len(seconds), 1 / RATE)
resonances = sum(1 / (1 + ((frequency - hertz) / 150) ** 2) for hertz in (500, 1500, 2500, 5500))
voice = np.fft.irfft(np.fft.rfft(buzz) * resonances) * np.abs(np.sin(2 * np.pi * 2 * seconds))
voice[(seconds < 0.6) | (seconds > 3.4)] = 0
recording = (0.1 * voice / voice.std() + 3e-4 * rng.normal(size=len(voice))).clip(-1, 1).astype(np.float32)

# %%
# Its copies
# ----------
# The random choices for a copy (the noise, the room, the codec) depend only on the id of the recording and a seed. The
# copies are the same in any order and on any number of machines.

channels = Channels(seed=0)
copies = {kind: channels.copy("ann-1", recording, RATE, kind) for kind in KINDS}

fig, axes = plt.subplots(len(KINDS), figsize=(5.6, 6.4), sharex=True, layout="constrained")
for ax, (kind, samples) in zip(axes, copies.items(), strict=True):
    ax.specgram(samples + 1e-9, NFFT=512, Fs=RATE, noverlap=384, vmin=-120, vmax=-40, cmap="cividis")
    ax.set_ylabel(kind)
    ax.set_yticks([0, 4000, 8000], ["0", "4", "8 kHz"])
axes[-1].set_xlabel("Seconds")
plt.show()

# %%
# What the channels did
# ---------------------
# The same measures are the columns of ``duoplda embed --quality-out``, which calibration takes as side information. The
# telephone shows in a wide-band file: nothing is left above 4 kHz.

qualities = {kind: measure_quality(samples, RATE) for kind, samples in copies.items()}
for kind, of in qualities.items():
    print(f"{kind:10} {of.speech:.2f} s of speech, SNR {of.snr:.0f} dB, speech up to {of.bandwidth:,.0f} Hz")

# %%
# Where speech is
# ---------------
# Speech is what lies above the noise of the recording. A recording without any gets no embedding, and a line that says
# so: an extractor would give a vector for silence, too, and every vector is scored as if it were of a speaker.

detector = EnergyDetector()
((start, end),) = detector.regions([recording], RATE)
noise = (3e-4 * rng.normal(size=4 * RATE)).astype(np.float32)
none = detector.regions([noise], RATE)
print(f"speech from {start:.2f} to {end:.2f} s; in noise alone there are {len(none)} regions of speech")

# %%
# What a model has to know
# ------------------------
# ``duoplda embed --copies`` embeds all of them and writes the table below. For a model that reads only the column of
# speakers these are five pieces of evidence; the column ``session`` says that they are one.

print("id,speaker,session,channel")
for kind in KINDS:
    print(f"{'ann-1' if kind == 'clean' else f'ann-1-{kind}'},ann,ann-1,{kind}")

# %%
# Take home
# ---------
# - ``duoplda embed --copies clean,noise,telephone,reverb,codec`` makes copies and embeds them; ``--labels-out`` writes
#   whose they are, and their sessions. Give your own noises with ``--noises``.
# - From a folder of recordings to a report is one command: ``duoplda demo --audio recordings --extractor m.onnx``.
# - What it costs to count copies as sessions is on :doc:`plot_copies_are_not_sessions`; what was measured on real
#   recordings is in :doc:`/audio`.
#
# **When it does not hold.** These channels are simple: babble is noise with the rhythm of voices, a room is noise that
# decays, and no line drops packets. They teach a model how much a session can change, and are no substitute for
# recordings of the channel that you will meet. Detection of speech by its level works in quiet and in steady noise; it
# mistakes music and voices in the background for speech.
