// Package image is a card's bitstream with its manifest, and how it lies in the slots of a card's flash (struct ImageHeader of
// the contract). Load writes it so that the card starts, on the old image or the new one, wherever power is lost.
package image
